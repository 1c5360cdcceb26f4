package gitstore

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// namesIn returns the names of all tasks by UID, and the damaged records.
func namesIn(t *testing.T, f fences) map[string]string {
	t.Helper()
	found, damaged, err := f.records()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for uid, record := range found {
		names[uid] = record.Name
	}
	for _, uid := range damaged {
		names[uid] = "damaged"
	}
	return names
}

// settle makes the last change of a folder look old.
func settle(t testing.TB, folder string) {
	t.Helper()
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(folder, long, long); err != nil {
		t.Fatal(err)
	}
}

func TestRecordsInMemoryAreThoseOnDiskWhoeverChangesThem(t *testing.T) {
	f := fences{folder: t.TempDir(), cache: &recordCache{}}
	other := fences{folder: f.folder} // of another process
	expect := func(when string, want map[string]string) {
		t.Helper()
		for range 2 {
			if diff := cmp.Diff(want, namesIn(t, f)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
	}
	write := func(f fences, uid, name string) {
		t.Helper()
		if err := f.write(uid, fenceRecord{Name: name}); err != nil {
			t.Fatal(err)
		}
	}
	expect("an empty folder", map[string]string{})
	write(f, "a", "one")
	expect("written", map[string]string{"a": "one"})
	write(other, "b", "one")
	for _, name := range []string{"two", "six", "ten"} { // of the same size, one after the other
		write(f, "a", name)
		expect("written again", map[string]string{"a": name, "b": namesIn(t, other)["b"]})
		write(other, "b", name)
		expect("written by another process", map[string]string{"a": name, "b": name})
	}
	settle(t, f.folder)
	expect("when nothing has changed for long", map[string]string{"a": "ten", "b": "ten"})
	write(f, "a", "own")
	settle(t, f.folder)
	expect("written, with a clock that steps back", map[string]string{"a": "own", "b": "ten"})
	if err := os.WriteFile(f.record("a"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	write(other, "c", "new")
	expect("damaged", map[string]string{"a": "damaged", "b": "ten", "c": "new"})
	for _, uid := range []string{"a", "b"} {
		if err := os.Remove(f.record(uid)); err != nil {
			t.Fatal(err)
		}
	}
	expect("removed", map[string]string{"c": "new"})
}

func TestRecordsAreNotReadAgainAsLongAsNothingChanges(t *testing.T) {
	f := fences{folder: t.TempDir(), cache: &recordCache{}}
	if err := f.write("a", fenceRecord{Name: "one", Namespace: uidOfTeam, Attempt: 1}); err != nil {
		t.Fatal(err)
	}
	if err := f.writeOwners(owners{First: uidOfTeam}); err != nil {
		t.Fatal(err)
	}
	settle(t, f.folder)
	before, err := f.belongings(uidOfTeam)
	if err != nil || !before.has("a") || !before.hasBranches("one") {
		t.Fatalf("the belongings are %+v, %v", before, err)
	}
	// In place, which nobody does, and which does not show in the folder.
	if err := os.WriteFile(f.record("a"), []byte(`{"name":"xxx"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"a": "one"}, namesIn(t, f)); diff != "" {
		t.Errorf("records were read again (-want +got):\n%s", diff)
	}
}

// BenchmarkBelongings measures how long it takes to find out which of 5,000 tasks are of a namespace
// that was made anew, as each fetch of its readers does.
func BenchmarkBelongings(b *testing.B) {
	folder := filepath.Join(b.TempDir(), "fences")
	if err := os.Mkdir(folder, 0o755); err != nil {
		b.Fatal(err)
	}
	for n := range 5000 {
		content := fmt.Sprintf(`{"attempt":3,"name":"task-%d","namespace":"uid-%d"}`, n, n%2)
		for suffix, content := range map[string]string{recordSuffix: content, ".lock": ""} {
			if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("0b6f7a9e-6a4e-4d0f-9d57-%012d", n)+suffix), []byte(content), 0o600); err != nil {
				b.Fatal(err)
			}
		}
	}
	measure := func(f fences, before func()) func(*testing.B) {
		return func(b *testing.B) {
			if _, err := f.belongings("uid-1"); err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				before()
				if owned, err := f.belongings("uid-1"); err != nil || len(owned.uids) != 2500 {
					b.Fatal(len(owned.uids), err)
				}
			}
		}
	}
	if err := (fences{folder: folder}).writeOwners(owners{First: "uid-0"}); err != nil {
		b.Fatal(err)
	}
	cached := fences{folder: folder, cache: &recordCache{}}
	settle(b, folder)
	b.Run("all_read", measure(fences{folder: folder}, func() {}))
	b.Run("in_memory", measure(cached, func() {}))
	b.Run("after_a_change", measure(cached, func() { cached.cache.wrote("0b6f7a9e-6a4e-4d0f-9d57-000000000007") }))
}

package journal_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/clew-dev/clew/internal/daemon/journal"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

func TestUpdateSurvivesReopening(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.json")
	j, err := journal.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := journal.State{
		TaskUID: "u", Attempt: 3, Layout: &journal.Layout{Stage: journal.LayoutReady}, LastNumber: 4,
		Latest: &journal.Point{Number: 4, Code: "c", State: "s"}, Pending: []journal.Point{{Number: 4, Code: "c"}},
		Rewind: &journal.Rewind{ID: "r", Stage: journal.RewindSaved, Target: journal.Point{Number: 2}},
	}
	if err := j.Update(func(s *journal.State) error { *s = want; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := j.Update(func(s *journal.State) error { s.Attempt = 9; return errors.New("no") }); err == nil {
		t.Fatal("the change's error is lost")
	}
	// A write that a crash interrupted leaves a file that is never read.
	os.WriteFile(path+".new", []byte("{torn"), 0o600)
	again, err := journal.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, got := range []journal.State{j.State(), again.State()} {
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
}

func TestAJournalOfAVolumeThatWasTakenOverIsNotWritten(t *testing.T) {
	path, taken := filepath.Join(t.TempDir(), "journal.json"), error(nil)
	j, err := journal.Open(path, func() error { return taken })
	if err != nil {
		t.Fatal(err)
	}
	attempt := func(n int64) error {
		return j.Update(func(s *journal.State) error { s.Attempt = n; return nil })
	}
	if err := attempt(1); err != nil {
		t.Fatal(err)
	}
	taken = errors.New("taken")
	if err := attempt(2); !errors.Is(err, taken) {
		t.Errorf("Update returns %v, want %v", err, taken)
	}
	again, err := journal.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, got := range map[string]int64{"the journal": j.State().Attempt, "its file": again.State().Attempt} {
		if got != 1 {
			t.Errorf("%s has attempt %d, want 1", name, got)
		}
	}
}

func TestStateIsACopy(t *testing.T) {
	j, _ := journal.Open(filepath.Join(t.TempDir(), "journal.json"), nil)
	j.Update(func(s *journal.State) error { s.Latest = &journal.Point{Number: 1}; return nil })
	s := j.State()
	s.Latest.Number = 7
	if j.State().Latest.Number != 1 {
		t.Fatal("a reader changed the journal")
	}
}

func TestADamagedJournalIsPutAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.json")
	for n, aside := range []string{path + ".damaged", path + ".damaged-2"} {
		damaged := fmt.Sprintf("{%d", n)
		if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
			t.Fatal(err)
		}
		for range 2 { // and a restart does not forget it
			j, err := journal.Open(path, nil)
			if err != nil || !j.State().JournalLost {
				t.Fatalf("%v, %+v", err, j.State())
			}
		}
		if kept, err := os.ReadFile(aside); err != nil || string(kept) != damaged {
			t.Fatalf("kept %q, %v", kept, err)
		}
	}
}

func TestListsAreBounded(t *testing.T) {
	var s journal.State
	for i := range 1500 {
		s.MarkServed(fmt.Sprint(i))
		s.Complete(journal.Done{ID: fmt.Sprint("Rewind/", i%1200), To: int64(i)})
	}
	s.MarkServed("1499")
	if len(s.Served) != 1000 || s.Served[999] != "1499" {
		t.Fatalf("%d served", len(s.Served))
	}
	if d, _ := s.Operation("Rewind", "299"); d != (journal.Done{ID: "Rewind/299", To: 1499}) {
		t.Fatalf("the newest operation is %+v", d)
	}
	if len(s.Done) != 1000 {
		t.Fatalf("%d operations are remembered, want 1000", len(s.Done))
	}
	if _, ok := s.Operation("Rewind", "300"); ok {
		t.Fatal("the oldest is still there")
	}
}

func TestOperationsAreFoundByKindAndID(t *testing.T) {
	for name, tt := range map[string]struct {
		done journal.Done
		want []string
	}{
		"a resume":                       {journal.Done{ID: "Resume/1"}, []string{"Resume"}},
		"a rewind":                       {journal.Done{ID: "Rewind/1", From: 2, To: 1}, []string{"Rewind"}},
		"a resume of an old journal":     {journal.Done{ID: "1"}, []string{"Resume"}},
		"a rewind of an old journal":     {journal.Done{ID: "1", From: 2, To: 1}, []string{"Rewind"}},
		"one to before any checkpoint":   {journal.Done{ID: "1", Position: 3}, []string{"Rewind"}},
		"a prompt that was recorded":     {journal.Done{ID: "Resume/1/recorded"}, nil},
		"a prompt, in an old journal":    {journal.Done{ID: "1/recorded"}, nil},
		"another one":                    {journal.Done{ID: "Resume/11"}, nil},
		"another one, in an old journal": {journal.Done{ID: "11"}, nil},
	} {
		s := journal.State{Done: []journal.Done{tt.done}}
		var got []string
		for _, kind := range []string{"Rewind", "Resume"} {
			if _, ok := s.Operation(kind, "1"); ok {
				got = append(got, kind)
			}
		}
		if d := cmp.Diff(tt.want, got); d != "" {
			t.Errorf("%s is found as (-want +got):\n%s", name, d)
		}
	}
}

func TestUnspooled(t *testing.T) {
	var s journal.State
	if err := s.SetUnspooled(&daemonv1.CheckpointRecord{Number: 4, Trigger: "Manual"}); err != nil {
		t.Fatal(err)
	}
	c, err := s.UnspooledRecord()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&daemonv1.CheckpointRecord{Number: 4, Trigger: "Manual"}, c, protocmp.Transform()); d != "" {
		t.Fatalf("record (-want +got):\n%s", d)
	}
	s.SetUnspooled(nil)
	if c, _ := s.UnspooledRecord(); c != nil {
		t.Fatal("a cleared record is still there")
	}
}

func TestAFlippedBitIsNoticed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.json")
	j, err := journal.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = j.Update(func(s *journal.State) error {
		p := journal.Point{Number: 4, Code: "8d1c2f0e8d1c2f0e", State: "8d1c2f0e8d1c2f0e"}
		s.TaskUID, s.Attempt, s.PodUID, s.LastNumber, s.Latest, s.Clean, s.Parent = "uid-1", 3, "pod", 4, &p, &p, p.Code
		s.Layout = &journal.Layout{Stage: journal.LayoutReady}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for bit := range 8 * len(raw) {
		damaged := slices.Clone(raw)
		damaged[bit/8] ^= 1 << (bit % 8)
		if err := os.WriteFile(path, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		again, err := journal.Open(path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := again.State(); !got.JournalLost && !cmp.Equal(got, j.State()) {
			t.Fatalf("byte %d of %q gives another state, and nobody notices: %s", bit/8, damaged, cmp.Diff(j.State(), got))
		}
		if aside, _ := filepath.Glob(path + ".damaged*"); len(aside) > 0 {
			for _, name := range aside {
				_ = os.Remove(name)
			}
		}
	}
}

// TestAJournalOfAnOlderReleaseIsRead: such journals have no checksum.
func TestAJournalOfAnOlderReleaseIsRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.json")
	if err := os.WriteFile(path, []byte("{\n \"taskUID\": \"u\",\n \"attempt\": 3\n}"), 0o600); err != nil {
		t.Fatal(err)
	}
	j, err := journal.Open(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(journal.State{TaskUID: "u", Attempt: 3}, j.State()); d != "" {
		t.Fatalf("journal (-want +got):\n%s", d)
	}
}

// TestACrashWhileAJournalIsPutAside leaves only the damaged one in its folder.
func TestACrashWhileAJournalIsPutAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.json")
	if err := os.WriteFile(path+".damaged", []byte("{damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		j, err := journal.Open(path, nil)
		if err != nil || !j.State().JournalLost {
			t.Fatalf("the loss of the journal is forgotten: %+v, %v", j.State(), err)
		}
	}
}

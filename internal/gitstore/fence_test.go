package gitstore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

func TestOlderAttemptMayReadButNotPush(t *testing.T) {
	server := newTestServer(t, Limits{})
	first := server.client(taskToken("fix", 1))
	commit := first.commit("a", "one")
	first.push(commit + ":" + codeRef("fix", 1))
	second := first.as(taskToken("fix", 2))
	second.git("fetch", "--quiet", second.url, codeRef("fix", 1))

	// Only a fetch of the newer attempt has been seen; that suffices.
	first.refusedPush(gitstoreapi.StaleAttempt, "attempt 1 of the task fix may not write any more, because attempt 2 has been seen", commit+":"+codeRef("fix", 2))
	first.git("fetch", "--quiet", first.url, codeRef("fix", 1))
	second.push(commit + ":" + codeRef("fix", 2))
	// Other tasks have fences of their own.
	first.as(taskToken("other", 1)).push(commit + ":" + codeRef("other", 1))
}

// A client can ask whether a push would be accepted without pushing anything, by a refspec
// that matches no ref.
func TestAStaleAttemptIsRefusedBeforeItPushes(t *testing.T) {
	const nothing = "refs/clew-nothing/*:refs/clew-nothing/*"
	server := newTestServer(t, Limits{})
	newer := server.client(taskToken("fix", 7))
	newer.git("push", "--quiet", "--dry-run", newer.url, nothing)
	older := newer.as(taskToken("fix", 2))
	_, stderr, err := older.try("push", "--quiet", "--dry-run", older.url, nothing)
	if err == nil {
		t.Error("the dry run of an older attempt succeeded")
	}
	refused := checkRefused(t, "the dry run of an older attempt", stderr, gitstoreapi.StaleAttempt)
	if refused != nil && refused.Newest() != 7 {
		t.Errorf("the refusal names attempt %d as the newest, want 7", refused.Newest())
	}
	if refs := server.remoteRef("refs/"); refs != "" {
		t.Errorf("the dry runs created refs: %s", refs)
	}
}

// The hook stops an old attempt that has uploaded everything and passed all of the
// handler's checks.
func TestHookRefusesAnAttemptReplacedDuringItsPush(t *testing.T) {
	for name, test := range map[string]struct {
		newest int64
		want   gitstoreapi.Reason
	}{
		"overtaken": {newest: 3, want: gitstoreapi.StaleAttempt},
		"newest":    {newest: 2},
		"first":     {newest: 1},
	} {
		t.Run(name, func(t *testing.T) {
			server := newTestServer(t, Limits{})
			old := server.client(taskToken("fix", 2))
			commit := old.commit("a", "one")
			// After the handler's checks, just before git starts:
			server.handler.beforeGit = func() {
				fences, err := server.store.fences("team")
				if err != nil {
					t.Error(err)
				}
				if _, err := fences.raise(t.Context(), Task{NamespaceUID: uidOfTeam, UID: "uid-fix", Attempt: test.newest}); err != nil {
					t.Error(err)
				}
			}
			if test.want != "" {
				old.refusedPush(test.want, "because attempt 3 has been seen", commit+":"+codeRef("fix", 1))
				if got := server.remoteRef(codeRef("fix", 1)); got != "" {
					t.Fatal("the push landed")
				}
				return
			}
			old.push(commit + ":" + codeRef("fix", 1))
		})
	}
}

// A push that has passed the hook's check updates its refs before a newer attempt
// gets its answer, or not at all. The test holds the lock as git does.
func TestRaiseWaitsForPushesThatPassedTheirCheck(t *testing.T) {
	fences := fences{folder: t.TempDir()}
	task := Task{NamespaceUID: uidOfTeam, Name: "fix", UID: "uid-fix", Attempt: 1}
	if newest, err := fences.raise(t.Context(), task); err != nil || newest != 1 {
		t.Fatal(newest, err)
	}
	push, err := openLocked(t.Context(), fences.lock(task.UID), syscall.LOCK_SH)
	if err != nil {
		t.Fatal(err)
	}
	task.Attempt = 2
	impatient, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := fences.raise(impatient, task); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("raise during a push that is updating its refs returned %v, want DeadlineExceeded", err)
	}
	if newest, err := fences.newest(task.UID); err != nil || newest != 1 {
		t.Fatalf("newest %d, %v", newest, err)
	}
	raised := make(chan error)
	go func() {
		_, err := fences.raise(t.Context(), task)
		raised <- err
	}()
	if err := push.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-raised; err != nil {
		t.Fatal(err)
	}
	if newest, err := fences.newest(task.UID); err != nil || newest != 2 {
		t.Fatalf("newest %d, %v", newest, err)
	}
}

// The race itself, with real pushes: once the newer attempt has got its answer, the older
// one's refs no longer change.
func TestNoPushOfAnOlderAttemptLandsAfterANewerOneWasSeen(t *testing.T) {
	server := newTestServer(t, Limits{})
	for round := range 6 {
		name := "race" + string(rune('a'+round))
		old, newer := server.client(taskToken(name, 1)), server.client(taskToken(name, 2))
		old.commit("a", "one")
		var wait sync.WaitGroup
		wait.Go(func() {
			for number := 1; number <= 30; number++ {
				_, stderr, err := old.try("push", "--quiet", old.url, "HEAD:"+codeRef(name, number))
				if err != nil {
					if refused, ok := gitstoreapi.Parse(stderr); !ok || refused.Reason != gitstoreapi.StaleAttempt {
						t.Errorf("the push was refused as something other than a stale attempt: %s", stderr)
					}
					return
				}
			}
			t.Error("none of 30 pushes was refused")
		})
		gomega.NewWithT(t).Eventually(func() string { return server.remoteRef(codeRef(name, 1)) }).WithTimeout(time.Minute).
			ShouldNot(gomega.BeEmpty(), "the older attempt's first push")
		// Time is the subject: in each round the newer attempt comes at another moment of
		// the older one's pushes.
		time.Sleep(time.Duration(round) * 7 * time.Millisecond)
		newer.git("ls-remote", newer.url)
		seen := server.remoteRef("refs/clew/uid-" + name + "/")
		wait.Wait()
		if after := server.remoteRef("refs/clew/uid-" + name + "/"); after != seen {
			t.Errorf("round %d: the older attempt had %d refs when the newer one got its answer, but %d in the end",
				round, strings.Count(seen, "\n")+1, strings.Count(after, "\n")+1)
		}
	}
}

func TestFenceNeverDecreases(t *testing.T) {
	fences := fences{folder: t.TempDir()}
	var wait sync.WaitGroup
	for attempt := range int64(20) {
		wait.Go(func() {
			if _, err := fences.raise(t.Context(), Task{NamespaceUID: uidOfTeam, UID: "u", Attempt: attempt + 1}); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	if newest, err := fences.newest("u"); err != nil || newest != 20 {
		t.Fatalf("newest %d, %v", newest, err)
	}
}

// A damaged record must not let an old attempt write.
func TestDamagedFenceRefuses(t *testing.T) {
	server := newTestServer(t, Limits{})
	task := server.client(taskToken("fix", 1))
	commit := task.commit("a", "one")
	task.push(commit + ":" + codeRef("fix", 1))
	record := filepath.Join(server.store.namespace("team"), "fences", "uid-fix.json")
	if err := os.WriteFile(record, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	task.refusedPush(gitstoreapi.Unavailable, "attempt of the task could not be recorded", commit+":"+codeRef("fix", 2))
}

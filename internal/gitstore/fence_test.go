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

	"github.com/clew-dev/clew/internal/gitstoreapi"
)

func TestOlderAttemptMayReadButNotPush(t *testing.T) {
	server := newTestServer(t, Limits{})
	first := server.client(taskToken("fix", 1))
	commit := first.commit("a", "one")
	first.push(commit + ":" + codeRef("fix", 1))
	second := first.as(taskToken("fix", 2))
	second.git("fetch", "--quiet", second.url, codeRef("fix", 1))

	// Only a fetch of the newer attempt was seen; that is enough.
	first.refusedPush(gitstoreapi.StaleAttempt, "attempt 1 of the task fix may not write any more, because attempt 2 has been seen", commit+":"+codeRef("fix", 2))
	first.git("fetch", "--quiet", first.url, codeRef("fix", 1))
	second.push(commit + ":" + codeRef("fix", 2))
	// Other tasks have fences of their own.
	first.as(taskToken("other", 1)).push(commit + ":" + codeRef("other", 1))
}

// Whether a push would be taken is asked without one: a pattern that nothing matches.
func TestAnAttemptIsToldBeforeItPushesThatItIsStale(t *testing.T) {
	const nothing = "refs/clew-nothing/*:refs/clew-nothing/*"
	server := newTestServer(t, Limits{})
	newer := server.client(taskToken("fix", 7))
	newer.git("push", "--quiet", "--dry-run", newer.url, nothing)
	older := newer.as(taskToken("fix", 2))
	_, stderr, err := older.try("push", "--quiet", "--dry-run", older.url, nothing)
	refused, ok := gitstoreapi.Parse(stderr)
	if err == nil || !ok || refused.Reason != gitstoreapi.StaleAttempt || refused.Newest() != 7 {
		t.Errorf("%v, %+v: %s", err, refused, stderr)
	}
	if refs := server.remoteRef("refs/"); refs != "" {
		t.Errorf("refs were made: %s", refs)
	}
}

// An old pod that has everything uploaded, and its last word checked by the
// handler, is stopped by the hook.
func TestHookRefusesWhatWasOvertakenMeanwhile(t *testing.T) {
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
			// After the handler's checks, when git is about to be started:
			server.handler.beforeGit = func() {
				fences, err := server.store.fences("team")
				if err != nil {
					t.Error(err)
				}
				if _, err := fences.raise(t.Context(), Task{UID: "uid-fix", Attempt: test.newest}); err != nil {
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

// A push that has passed the hook's check moves its refs before a newer attempt
// is answered, or not at all: here the lock is held as git holds it.
func TestRaiseWaitsForPushesThatPassedTheirCheck(t *testing.T) {
	fences := fences{folder: t.TempDir()}
	task := Task{Name: "fix", UID: "uid-fix", Attempt: 1}
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
		t.Fatalf("raised beside a push that is moving its refs: %v", err)
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

// The race itself, with real pushes: once the newer attempt has been answered,
// the older one's refs do not change any more.
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
						t.Errorf("refused with: %s", stderr)
					}
					return
				}
			}
			t.Error("30 pushes, and none was too late")
		})
		for server.remoteRef(codeRef(name, 1)) == "" {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(round) * 7 * time.Millisecond)
		newer.git("ls-remote", newer.url)
		seen := server.remoteRef("refs/clew/uid-" + name + "/")
		wait.Wait()
		if after := server.remoteRef("refs/clew/uid-" + name + "/"); after != seen {
			t.Errorf("round %d: %d refs when the newer attempt was answered, %d in the end",
				round, strings.Count(seen, "\n")+1, strings.Count(after, "\n")+1)
		}
	}
}

func TestFenceNeverFalls(t *testing.T) {
	fences := fences{folder: t.TempDir()}
	var wait sync.WaitGroup
	for attempt := range int64(20) {
		wait.Go(func() {
			if _, err := fences.raise(t.Context(), Task{UID: "u", Attempt: attempt + 1}); err != nil {
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

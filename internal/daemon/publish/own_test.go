package publish_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// unreported publishes checkpoint 1 without anybody learning of it, and takes checkpoint 2.
func unreported(t *testing.T) (s *stage, first string) {
	t.Helper()
	s = newStage(t)
	s.want(s.run(t.Context()), v1alpha1.ReasonPublished, false)
	s.write(s.work, "left.txt", "left, and changed\n")
	s.checkpoint(2)
	s.cfg.Pod.Checkpoint = 2
	return s, s.origin("rev-parse", "clew/fix")
}

func TestAPushWhoseReportWasLostIsTheTasksOwn(t *testing.T) {
	s, first := unreported(t)
	s.cfg.Pod.Message, s.cfg.Pod.AuthorName = "Fix it better", "Another" // the spec has been changed since
	got := s.run(t.Context())
	s.want(got, v1alpha1.ReasonPublished, false)
	if at := s.origin("rev-parse", "clew/fix"); at != got.Commit || at == first {
		t.Errorf("the branch is at %s, want %s", at, got.Commit)
	}
	if at := s.origin("rev-parse", "clew/fix^"); at != s.head || got.Onto != s.head {
		t.Errorf("the parent is %s, and what is kept of others %s; want %s", at, got.Onto, s.head)
	}
}

// What the push of which nobody has learned kept of others is kept from then on.
func TestCommitsBelowAPushWhoseReportWasLostAreNotDiscarded(t *testing.T) {
	s, first := unreported(t)
	s.git.Run(t, s.work, "reset", "--quiet", "--hard", "HEAD~1")
	s.write(s.work, "other.txt", "x\n")
	s.checkpoint(3)
	s.cfg.Pod.Checkpoint = 3
	s.want(s.run(t.Context()), v1alpha1.ReasonDiverged, false, s.head)
	if at := s.origin("rev-parse", "clew/fix"); at != first {
		t.Errorf("the branch was moved to %s", at)
	}
}

// Nobody loses work that merely claims to be Clew's.
func TestACommitThatOnlyClaimsToBeACheckpointIsOfOthers(t *testing.T) {
	for name, forge := range map[string]func(s *stage, first string) string{
		"with another file": func(s *stage, first string) string {
			s.git.Run(s.T, s.work, "fetch", "--quiet", s.originURL, "clew/fix")
			s.git.Run(s.T, s.work, "checkout", "--quiet", "--force", "FETCH_HEAD")
			s.write(s.work, "theirs.txt", "theirs\n")
			s.git.Run(s.T, s.work, "add", "theirs.txt")
			s.git.Run(s.T, s.work, "commit", "--quiet", "--amend", "--no-edit")
			return s.git.Run(s.T, s.work, "rev-parse", "HEAD")
		},
		"of a checkpoint that the gitstore does not have": func(s *stage, first string) string {
			return s.git.Run(s.T, s.work, "commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "Fix it\n\nClew-Task: team/fix\nClew-Checkpoint: 77")
		},
		"of the checkpoint, with nothing that says so": func(s *stage, first string) string {
			return s.git.Run(s.T, s.work, "commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "Fix it")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, first := unreported(t)
			theirs := forge(s, first)
			s.git.Run(t, s.work, "push", "--quiet", "--force", s.originURL, theirs+":refs/heads/clew/fix")
			s.want(s.run(t.Context()), v1alpha1.ReasonDiverged, false, theirs)
			if at := s.origin("rev-parse", "clew/fix"); at != theirs {
				t.Errorf("the branch was moved from %s to %s", theirs, at)
			}
		})
	}
}

// An agent that checks out a commit of others for the time of a checkpoint has not made it.
func TestACommitThatTheAgentHasOnlyCheckedOutIsOfOthers(t *testing.T) {
	s, _ := unreported(t)
	theirs := s.git.Run(t, s.work, "commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "Theirs\n\nClew-Task: team/fix\nClew-Checkpoint: 3")
	s.git.Run(t, s.work, "push", "--quiet", "--force", s.originURL, theirs+":refs/heads/clew/fix")
	s.git.Run(t, s.work, "reset", "--quiet", "--hard", theirs)
	s.git.Run(t, s.work, "clean", "--quiet", "-f", "-d", "-x")
	s.checkpoint(3)
	s.git.Run(t, s.work, "reset", "--quiet", "--hard", "HEAD~1")
	s.write(s.work, "own.txt", "own\n")
	s.checkpoint(4)
	s.cfg.Pod.Checkpoint = 4
	s.want(s.run(t.Context()), v1alpha1.ReasonDiverged, false, theirs)
	if at := s.origin("rev-parse", "clew/fix"); at != theirs {
		t.Errorf("the branch was moved from %s to %s", theirs, at)
	}
}

// untilPushed runs a pod, and kills it after its push has taken effect and before it can report it.
// It returns the report of a pod that has not pushed.
func (s *stage) untilPushed() (report *daemonapi.PublishResult) {
	s.Helper()
	origin := filepath.Join(s.git.Dir, "origin.git")
	hook, pushed, hold := filepath.Join(origin, "hooks", "post-receive"), filepath.Join(origin, "pushed"), filepath.Join(origin, "hold")
	s.write(origin, "hold", "")
	s.write(filepath.Dir(hook), filepath.Base(hook), "#!/bin/sh\n: > pushed\nwhile [ -e hold ]; do sleep 0.02; done\n")
	if err := os.Chmod(hook, 0o755); err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	done := make(chan daemonapi.PublishResult, 1)
	go func() { done <- s.run(ctx) }()
	hasPushed := func() bool {
		_, err := os.Stat(pushed)
		return err == nil
	}
	gomega.NewWithT(s.T).Eventually(func() bool { return hasPushed() || len(done) > 0 }).WithTimeout(30 * time.Second).Should(gomega.BeTrue())
	if hasPushed() {
		cancel()
		<-done
	} else {
		report = ptr.To(<-done)
	}
	for _, file := range []string{hold, hook, pushed} {
		if err := os.Remove(file); err != nil && !os.IsNotExist(err) {
			s.Fatal(err)
		}
	}
	return report
}

// pods publishes a checkpoint as the manager does: it notes what it starts pods for, and what they
// announce. killed kills the one that pushes.
func (s *stage) pods(checkpoint int64, killed bool) daemonapi.PublishResult {
	s.Helper()
	pod := &s.cfg.Pod
	pod.Announce, pod.Checkpoint = true, checkpoint
	if !slices.Contains(pod.Tries, checkpoint) {
		pod.Tries = append(pod.Tries, checkpoint)
	}
	for {
		before, got := s.origin("for-each-ref"), &daemonapi.PublishResult{}
		if killed {
			got = s.untilPushed()
		} else {
			*got = s.run(s.Context())
		}
		switch {
		case got == nil:
			pod.Unreported = slices.Clone(pod.Announced)
			return daemonapi.PublishResult{}
		case got.Reason == v1alpha1.ReasonPublished:
			pod.Replaces, pod.Onto, pod.Tries, pod.Announced, pod.Unreported = got.Commit, got.Onto, nil, nil, nil
			return *got
		case !got.NotPushed:
			s.Fatalf("a pod that has pushed nothing does not report that: %+v", *got)
		case got.Reason != v1alpha1.ReasonPushAnnounced:
			return *got
		}
		if after := s.origin("for-each-ref"); after != before {
			s.Fatalf("a push that was only announced has changed the repository: %s", after)
		}
		pod.Announced = append(pod.Announced, daemonapi.OwnPush{Commit: got.Commit, Onto: got.Onto})
	}
}

// others pushes a commit of others to the branch, on top of a commit, and returns it.
func (s *stage) others(onto string) string {
	s.Helper()
	theirs := s.git.Run(s.T, s.work, "commit-tree", onto+"^{tree}", "-p", onto, "-m", "Theirs")
	s.git.Run(s.T, s.work, "push", "--quiet", "--force", s.originURL, theirs+":refs/heads/clew/fix")
	return theirs
}

// A pod is killed after its push; the next one knows what was pushed, and what that kept of others.
func TestWhatAKilledPodHasPushedIsReplacedAndNothingElse(t *testing.T) {
	commits := func(s *stage) { // the agent leaves nothing uncommitted
		s.git.Run(s.T, s.work, "add", "-A")
		s.git.Run(s.T, s.work, "commit", "--quiet", "-m", "all")
	}
	amends := func(s *stage) {
		s.git.Run(s.T, s.work, "commit", "--quiet", "--amend", "-m", "own, and better")
	}
	drops := func(s *stage) { s.git.Run(s.T, s.work, "reset", "--quiet", "--soft", "HEAD~1") }
	for name, tt := range map[string]struct {
		// before is what the agent and others do before the push, after what they do after it.
		before, after func(s *stage)
		// again: the same checkpoint is published again before that.
		again bool
		// reason is the outcome of publishing then; kept is what it keeps of others, by a name that
		// git knows in the agent's repository.
		reason, kept string
	}{
		"the agent amends the commit below":                                {after: amends, reason: v1alpha1.ReasonPublished},
		"the agent drops the commit below":                                 {after: drops, reason: v1alpha1.ReasonPublished},
		"the agent amends its own":                                         {before: commits, after: amends, reason: v1alpha1.ReasonPublished},
		"the agent drops its own":                                          {before: commits, after: drops, reason: v1alpha1.ReasonPublished},
		"the agent goes on":                                                {before: commits, after: func(s *stage) { s.write(s.work, "more.txt", "x\n"); commits(s) }, reason: v1alpha1.ReasonPublished},
		"another pod finds it, and then the agent amends the commit below": {again: true, after: amends, reason: v1alpha1.ReasonPublished},
		"another pod finds it, and then the agent amends its own":          {before: commits, again: true, after: amends, reason: v1alpha1.ReasonPublished},
		"it was pushed over a commit of others that the agent keeps": {
			before: func(s *stage) {
				s.git.Run(s.T, s.work, "tag", "theirs", s.others("HEAD~1"))
				s.git.Run(s.T, s.work, "rebase", "--quiet", "theirs")
			},
			after: amends, reason: v1alpha1.ReasonPublished, kept: "theirs",
		},
		"it was pushed over a commit of others that the agent drops": {
			before: func(s *stage) {
				s.git.Run(s.T, s.work, "tag", "theirs", s.others("HEAD~1"))
				s.git.Run(s.T, s.work, "rebase", "--quiet", "theirs")
			},
			after: func(s *stage) { drops(s); drops(s) }, reason: v1alpha1.ReasonDiverged,
		},
		"others push on top of it": {
			after: func(s *stage) {
				amends(s)
				s.git.Run(s.T, s.work, "fetch", "--quiet", s.originURL, "clew/fix")
				s.others("FETCH_HEAD")
			},
			reason: v1alpha1.ReasonDiverged,
		},
		"others push on top of it, and the agent takes that": {
			before: commits,
			after: func(s *stage) {
				s.git.Run(s.T, s.work, "reset", "--quiet", "--hard", s.others("HEAD"))
				s.git.Run(s.T, s.work, "tag", "theirs")
				s.write(s.work, "more.txt", "x\n")
			},
			reason: v1alpha1.ReasonPublished, kept: "theirs",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			if tt.before != nil {
				tt.before(s)
			}
			s.checkpoint(2)
			s.pods(2, true)
			if tt.again {
				s.want(s.pods(2, false), v1alpha1.ReasonPublished, false)
			}
			tt.after(s)
			at := s.origin("rev-parse", "clew/fix")
			s.write(s.work, "left.txt", "left, and changed\n")
			s.checkpoint(3)
			got := s.pods(3, false)
			s.want(got, tt.reason, false)
			switch now := s.origin("rev-parse", "clew/fix"); {
			case tt.reason != v1alpha1.ReasonPublished && now != at:
				t.Errorf("the branch was moved from %s to %s", at, now)
			case tt.reason == v1alpha1.ReasonPublished && now != got.Commit:
				t.Errorf("the branch is at %s, want %s", now, got.Commit)
			}
			kept := ""
			if tt.kept != "" {
				kept = s.git.Run(t, s.work, "rev-parse", tt.kept)
			}
			if tt.reason == v1alpha1.ReasonPublished && got.Onto != kept {
				t.Errorf("it keeps %q of others, want %q", got.Onto, kept)
			}
		})
	}
}

// The agent has the commit from others, who push it to the branch themselves before the pod does that
// makes the announced push.
func TestACommitThatOthersHavePushedIsNotTheTasksForHavingBeenAnnounced(t *testing.T) {
	s := newStage(t)
	base := s.git.Run(t, s.work, "rev-parse", "HEAD~1")
	s.git.Run(t, s.work, "push", "--quiet", "--force", s.originURL, base+":refs/heads/clew/fix")
	theirs := s.git.Run(t, s.work, "commit-tree", base+"^{tree}", "-p", base, "-m", "Theirs")
	s.git.Run(t, s.work, "reset", "--quiet", "--hard", theirs)
	s.git.Run(t, s.work, "clean", "--quiet", "-f", "-d", "-x")
	s.checkpoint(2)
	pod := &s.cfg.Pod
	pod.Announce, pod.Checkpoint, pod.Tries, pod.Replaces = true, 2, []int64{2}, base
	got := s.run(t.Context())
	if got.Reason != v1alpha1.ReasonPushAnnounced || got.Commit != theirs || !got.NotPushed {
		t.Fatalf("the first pod reports %+v", got)
	}
	pod.Announced = []daemonapi.OwnPush{{Commit: got.Commit, Onto: got.Onto}}
	s.git.Run(t, s.work, "push", "--quiet", s.originURL, theirs+":refs/heads/clew/fix")

	s.git.Run(t, s.work, "reset", "--quiet", "--hard", base)
	s.write(s.work, "own.txt", "own\n")
	s.checkpoint(3)
	s.want(s.pods(3, false), v1alpha1.ReasonDiverged, false, theirs)
	if at := s.origin("rev-parse", "clew/fix"); at != theirs {
		t.Errorf("the branch was moved from %s to %s", theirs, at)
	}
}

// Each of two pods was lost that were to push the same commit, over different commits of others.
func TestWhatOneOfSeveralLostPodsHasKeptIsNotDiscarded(t *testing.T) {
	s := newStage(t)
	first := s.others("HEAD~1")
	second := s.others(first)
	s.git.Run(t, s.work, "rebase", "--quiet", second)
	s.checkpoint(2)
	s.git.Run(t, s.work, "push", "--quiet", "--force", s.originURL, first+":refs/heads/clew/fix")
	pod := &s.cfg.Pod
	pod.Announce, pod.Checkpoint, pod.Tries = true, 2, []int64{2}
	got := s.run(t.Context())
	pod.Announced = []daemonapi.OwnPush{{Commit: got.Commit, Onto: first}}
	pod.Unreported = pod.Announced
	s.git.Run(t, s.work, "push", "--quiet", s.originURL, second+":refs/heads/clew/fix")
	s.pods(2, true)
	at := s.origin("rev-parse", "clew/fix")
	if at != got.Commit || len(pod.Unreported) != 2 {
		t.Fatalf("the branch is at %s, and the pods may have pushed %+v", at, pod.Unreported)
	}

	s.git.Run(t, s.work, "reset", "--quiet", "--hard", first)
	s.write(s.work, "own.txt", "own\n")
	s.checkpoint(3)
	s.want(s.pods(3, false), v1alpha1.ReasonDiverged, false)
	if now := s.origin("rev-parse", "clew/fix"); now != at {
		t.Errorf("the branch was moved from %s to %s", at, now)
	}
}

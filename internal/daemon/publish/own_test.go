package publish_test

import (
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
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

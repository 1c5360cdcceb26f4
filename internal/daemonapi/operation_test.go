package daemonapi_test

import (
	"strings"
	"testing"

	"github.com/clew-dev/clew/internal/daemonapi"
)

func TestOperationsOfTwoKindsHaveKeysOfTheirOwn(t *testing.T) {
	for _, tt := range [][2]string{
		{daemonapi.OperationKey(daemonapi.OperationResume, "1"), "Resume/1"},
		{daemonapi.OperationKey(daemonapi.OperationRewind, "1"), "Rewind/1"},
		{daemonapi.OperationDoneKey(daemonapi.OperationRewind, "1"), "Rewind/1/done"},
	} {
		if tt[0] != tt[1] {
			t.Errorf("the key is %q and should be %q", tt[0], tt[1])
		}
	}
}

func TestABareIDGetsItsKindFromTheReason(t *testing.T) {
	for _, tt := range []struct{ key, reason, want string }{
		{"1", "resume", "Resume/1"},
		{"1", "rewind", "Rewind/1"},
		{"1/done", "rewind complete", "Rewind/1/done"},
		{"restore/2", "the volume was lost", "restore/2"},
		{"Rewind/1", "rewind", "Rewind/1"},
		{"Rewind/1/done", "rewind complete", "Rewind/1/done"},
		{"Resume/1", "resume", "Resume/1"},
		{"1", "for some other reason", "1"},
		{"done", "rewind", "Rewind/done"},
		{"", "rewind", ""},
	} {
		if got := daemonapi.UpgradeOperationKey(tt.key, tt.reason); got != tt.want {
			t.Errorf("%q, noted for %q: the key is %q and should be %q", tt.key, tt.reason, got, tt.want)
		}
	}
}

func TestNoIDMakesTheBranchOfAResumeCollideWithThatOfARewind(t *testing.T) {
	ids := []string{"x", "resume", "resume-x", "resume-resume-x", "before", "1"}
	for _, resume := range ids {
		for _, rewind := range ids {
			a, b := daemonapi.ResumeBranch(resume), daemonapi.PreservedBranch("", rewind)
			if a == b || strings.HasPrefix(a, b+"/") || strings.HasPrefix(b, a+"/") {
				t.Errorf("git cannot have the branch %s of the resume %s beside %s of the rewind %s", a, resume, b, rewind)
			}
		}
	}
}

package prepare_test

import (
	"strings"
	"testing"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/prepare"
	"github.com/clew-dev/clew/internal/daemonapi"
)

// cleanResume and resumeFrom are resumes as the manager requests them.
func cleanResume(prompt string) *daemonapi.Operation {
	return &daemonapi.Operation{Kind: daemonapi.OperationResume, ID: "on", Prompt: prompt, Rewind: &daemonapi.ResumeRewind{Anew: true}}
}

func resumeFrom(n int64, prompt string) *daemonapi.Operation {
	return &daemonapi.Operation{Kind: daemonapi.OperationResume, ID: "on", Prompt: prompt,
		Rewind: &daemonapi.ResumeRewind{Checkpoint: n, Branch: "clew/before/resume-on"}}
}

func TestAResumeFromACheckpointRewindsAndContinuesFromThere(t *testing.T) {
	t.Parallel()
	w := three(t)
	for range 2 { // the second pod finds it done
		result := w.Prepare(2, resumeFrom(2, "The other way."))
		expect(t, "the operation", result.OperationKind+" "+result.Operation, "Resume on")
		expect(t, "from, to", []int64{result.FromCheckpoint, result.ToCheckpoint}, []int64{4, 2})
		expect(t, "preserved", result.Preserved, "clew/before/resume-on")
		expect(t, "conversation", w.Lines(), append(callsOfThree[:5:5], "user The other way."))
		expect(t, "agent's state", readHome(w), "2")
		expect(t, "a file of later", w.Tree()["three/ignored"], "")
	}
	t.Run("and is undone by its id", func(t *testing.T) {
		attempt(w, 2, func(a *daemontest.Shim) { step(w, a, "4", "four.txt", "4\n") })
		w.Prepare(3, rewindTo(4, "Both", "Discard"))
		expect(t, "conversation", w.Lines(), callsOfThree)
		expect(t, "a file of later", w.Read("three/ignored"), "3\n")
	})
}

func TestACleanResumeKeepsTheCodeAndNothingElse(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ prompt, want string }{
		"with a prompt of its own":    {"Write tests.", "user Write tests."},
		"with the prompt of the task": {"", "user Do it."},
	} {
		t.Run(name, func(t *testing.T) {
			w := three(t)
			result := w.Prepare(2, cleanResume(c.prompt))
			expect(t, "the operation", result.OperationKind+" "+result.Operation, "Resume on")
			expect(t, "conversation", w.Lines(), []string{c.want})
			expect(t, "agent's state", readHome(w), "")
			expect(t, "a file", w.Read("three/ignored"), "3\n")
			attempt(w, 2, func(a *daemontest.Shim) { step(w, a, "4", "four.txt", "4\n") })
			expect(t, "conversation", w.Lines(), []string{c.want, "call 4", "result 4"})
			t.Run("and leaves a way back", func(t *testing.T) {
				w.Prepare(3, rewindTo(result.FromCheckpoint, "Both", "Discard"))
				expect(t, "conversation", w.Lines(), callsOfThree)
				expect(t, "agent's state", readHome(w), "3")
			})
		})
	}
}

func TestAdditionalContextStandsBelowThePrompt(t *testing.T) {
	t.Parallel()
	for prompt, want := range map[string]string{
		"Mind this.": "user Mind this.\n\nThe tests failed.",
		"":           "user Continue the task where you left off.\n\nThe tests failed.",
	} {
		w := three(t)
		w.Prepare(2, &daemonapi.Operation{Kind: daemonapi.OperationResume, ID: "on", Prompt: prompt, AdditionalContext: "The tests failed."})
		lines := w.Lines()
		expect(t, "the last message", lines[len(lines)-1], want)
	}
}

func TestAResumeWhoseCheckpointIsGoneFailsAndChangesNothing(t *testing.T) {
	t.Parallel()
	w := three(t)
	result := prepare.Run(t.Context(), w.PrepareConfig(2, resumeFrom(99, "Go on.")))
	expect(t, "reason", result.Reason, v1alpha1.ReasonCheckpointNotFound)
	if !result.Permanent || !strings.HasSuffix(result.Message, "; files and conversation are as they were before") {
		t.Errorf("the result is %+v", result)
	}
	expect(t, "conversation", w.Lines(), callsOfThree)
	expect(t, "a file", w.Read("three/ignored"), "3\n")
	t.Run("the next resume is carried out", func(t *testing.T) {
		op := &daemonapi.Operation{Kind: daemonapi.OperationResume, ID: "simply", Prompt: "Go on."}
		expect(t, "operation", w.Prepare(3, op).Operation, "simply")
		expect(t, "conversation", w.Lines(), append(callsOfThree[:7:7], "user Go on."))
	})
}

func TestAResumeIsOneOperationWhereverItIsKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("kills at every step: make test runs it")
	}
	t.Parallel()
	for name, c := range map[string]struct {
		op     *daemonapi.Operation
		expect func(*testing.T, *daemontest.World)
	}{
		"from a checkpoint": {resumeFrom(2, "The other way."), func(t *testing.T, w *daemontest.World) {
			expect(t, "conversation", w.Lines(), append(callsOfThree[:5:5], "user The other way."))
			expect(t, "home", readHome(w), "2")
			expect(t, "a file of later", w.Read("three/ignored"), "")
			expect(t, "number", latest(w).GetNumber(), 5)
		}},
		"clean": {cleanResume("Write tests."), func(t *testing.T, w *daemontest.World) {
			expect(t, "conversation", w.Lines(), []string{"user Write tests."})
			expect(t, "home", readHome(w), "")
			expect(t, "a file", w.Read("three/ignored"), "3\n")
			expect(t, "number", latest(w).GetNumber(), 5)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			killAtEveryStep(t, three(t), c.op, stride(3), c.expect)
		})
	}
}

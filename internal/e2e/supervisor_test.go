//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// leadsWork is a supervisor that goes through the phases of its contract. Whatever is not as it should be
// ends it.
const leadsWork = `
fails() { if "$@" >out.log 2>&1; then echo "it was carried out: $*"; exit 1; fi; cat out.log; }

clew phase set Specify
fails clew phase set Deploy
clew phase set Plan
clew task create parser -p "write parser"
clew task create parser -p "write parser"
fails clew task create parser -p "write something else"
clew task create tests -p "write tests" --depends-on parser --start-from parser
clew task create wrong -p "write nonsense"
fails clew task stop stranger
fails clew task create ../stranger -p "write nonsense"

clew phase set Execute
clew task wait
clew task list
clew task diff tests | grep -q '^+tests'
clew task history wrong | grep -q 'I have written nonsense.'
clew task rewind wrong 1 -p "write docs"
clew task wait wrong
clew task diff wrong >wrong.diff
grep -q '^+docs' wrong.diff
fails grep nonsense wrong.diff

clew task fork parser ways --variant fast="write fast" --variant small="write small" --variant other="write other"
clew task wait fast small other
clew phase set Review
clew task diff fast | grep -q '^+fast'
clew publish fast
`

// writesWhatItIsTold is a worker that takes a checkpoint before it writes what its newest message says.
const writesWhatItIsTold = `
say() { printf '{"type":"message","role":"assistant","text":"%s"}\n' "$1"; }
told=$(grep -o '"role":"user"[^}]*"text":"write [a-z]*' "${CLEW_CONVERSATION:-/dev/null}" | tail -n 1 | sed 's/.*write //')
told=${told:-${CLEW_PROMPT#write }}
[ -e begun.txt ] || { echo begun >begun.txt; clew checkpoint -m "before the work"; }
echo "$told" >"$told.txt"
say "I have written $told."
`

var _ = Describe("a supervisor", func() {
	w := newWorld()

	It("leads its workers through the phases of a contract, by a script", SpecTimeout(6*time.Minute), func(ctx SpecContext) {
		p := w.newPushed(ctx)
		stranger := w.newTask("stranger", "sleep", "infinity")
		stranger.Spec.OperatingMode = clewv1.OperatingModeSuspended
		w.create(ctx, stranger)
		lead := w.newTask("lead", "sh", "-euc", leadsWork)
		lead.Spec.Role, lead.Spec.Contract = clewv1.RoleSupervisor, &clewv1.Contract{Name: "port"}
		lead.Spec.Repository = &clewv1.Repository{URL: p.url, CredentialsSecretRef: &clewv1.NameReference{Name: "git"}}
		lead.Spec.Publish = &clewv1.Publish{Branch: "clew/port", When: clewv1.PublishCalled}
		lead.Spec.BackoffLimit = new(int32)
		lead.Spec.Children = &clewv1.Children{Maximum: ptr.To[int32](6), OnDelete: clewv1.ChildrenDelete, Template: &clewv1.ChildTemplate{
			Container: &clewv1.ChildContainer{Command: []string{"sh", "-euc", writesWhatItIsTold}},
		}}
		begun := time.Now()
		w.create(ctx, lead)
		lead = w.untilState(ctx, "lead", 4*time.Minute, clewv1.ReasonCompleted, clewv1.ReasonAgentFailed, clewv1.ReasonBackoffLimit)
		AddReportEntry("seconds of a contract", time.Since(begun).Seconds())
		w.reportContract(ctx, "port", "lead")
		Expect(state(lead)).To(Equal(clewv1.ReasonCompleted), conditionMessage(lead))

		By("looking at what it has made")
		Expect(lead.Status.Contract.Phase).To(Equal(clewv1.PhaseReview))
		w.eventually(ctx, w.task).WithArguments(ctx, "lead").WithTimeout(time.Minute).Should(HaveField("Status.Children", HaveValue(
			And(HaveField("Total", BeEquivalentTo(6)), HaveField("Completed", BeEquivalentTo(6))))))
		Expect(p.git(ctx, "show clew/port:fast.txt")).To(Equal("fast"))
		Expect(p.git(ctx, "show clew/port:parser.txt")).To(Equal("parser"))
		for _, name := range []string{"lead-parser", "lead-tests", "lead-wrong", "lead-fast", "lead-small", "lead-other"} {
			Expect(w.task(ctx, name).Spec.RequestedBy).To(HaveValue(HaveField("Created", "task:lead")), "who made the task %s", name)
		}
		Expect(w.task(ctx, "lead-parser").Status.Contract.Phase).To(Equal(clewv1.PhasePlan))
		Expect(state(w.task(ctx, "stranger"))).To(Equal(clewv1.ReasonSuspended))

		By("looking at its timeline")
		calls := map[string]int{}
		for _, e := range w.timeline(ctx, "lead") {
			if e.Reason == clewv1.EventToolCalled {
				tool, _, _ := strings.Cut(strings.TrimPrefix(e.Message, "the agent called "), ":")
				tool, _, _ = strings.Cut(tool, " (")
				tool, refused := strings.CutSuffix(tool, " was refused")
				if refused {
					tool = "refused " + tool
				}
				calls[tool]++
			}
		}
		Expect(calls).To(And(
			HaveKeyWithValue("phase_set", 4), HaveKeyWithValue("refused phase_set", 1),
			HaveKeyWithValue("task_create", 4), HaveKeyWithValue("refused task_create", 2), HaveKeyWithValue("refused task_stop", 1),
			HaveKeyWithValue("task_rewind", 1), HaveKeyWithValue("task_fork", 1), HaveKeyWithValue("publish", 1),
		), "each call is one entry")

		By("looking at what is told of its calls")
		w.expectCallsToldOf(ctx)
	})
})

// reportContract adds to the spec's report what is told of a contract.
func (w *world) reportContract(ctx context.Context, contract, supervisor string) {
	GinkgoHelper()
	for _, args := range [][]string{{"timeline", "--contract", contract}, {"tree", "--contract", contract}, {"task", "history", supervisor}} {
		out, err := exec.CommandContext(ctx, "kubectl", append([]string{"clew", "--namespace", w.namespace}, args...)...).CombinedOutput()
		AddReportEntry("kubectl clew "+strings.Join(args, " "), fmt.Sprintf("%s%v", out, err), ReportEntryVisibilityFailureOrVerbose)
	}
}

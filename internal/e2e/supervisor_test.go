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
// ends it. Killed, it begins again: a call with an id, or with a name, takes effect once.
const leadsWork = `
try() { until "$@" >try.log 2>&1; do cat try.log; sleep 1; done; cat try.log; }
fails() { if "$@" >fails.log 2>&1; then echo "it was carried out: $*"; exit 1; fi; cat fails.log; }

try clew phase set Specify --call-id specify
fails clew phase set Deploy
try clew phase set Plan --call-id plan
try clew task create parser -p "write parser"
try clew task create parser -p "write parser"
fails clew task create parser -p "write something else"
try clew task create lexer -p "write lexer"
try clew task create tests -p "write tests" --depends-on parser --start-from parser
try clew task create guide -p "write guide" --depends-on lexer
try clew task create wrong -p "write nonsense"
try clew task create review -p "write review" --depends-on tests --depends-on guide
fails clew task stop stranger
fails clew task create ../stranger -p "write nonsense"

try clew phase set Execute --call-id execute
try clew task wait parser lexer tests guide wrong review
try clew task list
try clew task diff tests && grep -q '^> +tests' try.log
try clew task history wrong "I have written nonsense"
try clew task rewind wrong 1 -p "write docs" --call-id rewind
try clew task wait wrong
try clew task diff wrong && grep -q '^> +docs' try.log
fails grep nonsense try.log

try clew task fork parser ways --variant fast="write fast" --variant small="write small" --variant other="write other"
try clew task wait fast small other
try clew phase set Review --call-id review
try clew task diff fast && grep -q '^> +fast' try.log
try clew publish fast --call-id publish
`

// writesWhatItIsTold is a worker that takes a checkpoint before it writes what its newest message says.
const writesWhatItIsTold = `
say() { printf '{"type":"message","role":"assistant","text":"%s"}\n' "$1"; }
told=$(grep -o '"role":"user"[^}]*"text":"write [a-z]*' "${CLEW_CONVERSATION:-/dev/null}" | tail -n 1 | sed 's/.*write //')
told=${told:-${CLEW_PROMPT#write }}
[ -e begun.txt ] || { clew checkpoint -m "before the work"; echo begun >begun.txt; }
echo "$told" >"$told.txt"
say "I have written $told."
`

// phasesOfWork are the tasks that the work makes, with the phase in which each was made.
var phasesOfWork = map[string]string{
	"parser": clewv1.PhasePlan, "lexer": clewv1.PhasePlan, "tests": clewv1.PhasePlan, "guide": clewv1.PhasePlan, "wrong": clewv1.PhasePlan, "review": clewv1.PhasePlan,
	"fast": clewv1.PhaseExecute, "small": clewv1.PhaseExecute, "other": clewv1.PhaseExecute,
}

var _ = Describe("a supervisor", func() {
	w := newWorld()

	It("leads its workers through the phases of a contract, by a script", SpecTimeout(8*time.Minute), func(ctx SpecContext) {
		p := w.newPushed(ctx)
		stranger := w.newTask("stranger", "sleep", "infinity")
		stranger.Spec.OperatingMode = clewv1.OperatingModeSuspended
		w.create(ctx, stranger)
		lead := w.newTask("lead", "sh", "-euc", leadsWork)
		begun := time.Now()
		w.create(ctx, leading(lead, p, func(t *clewv1.Task) { t.Spec.BackoffLimit = new(int32) }))
		w.untilWorkDone(ctx, p, 6*time.Minute)
		AddReportEntry("seconds of a contract", time.Since(begun).Seconds())
		Expect(state(w.task(ctx, "stranger"))).To(Equal(clewv1.ReasonSuspended))

		By("looking at its timeline")
		calls := w.callsOf(ctx, "lead")
		Expect(calls).To(And(
			HaveKeyWithValue("phase_set", 4), HaveKeyWithValue("refused phase_set", 1),
			HaveKeyWithValue("task_create", 7), HaveKeyWithValue("refused task_create", 2), HaveKeyWithValue("refused task_stop", 1),
			HaveKeyWithValue("task_rewind", 1), HaveKeyWithValue("task_fork", 1), HaveKeyWithValue("publish", 1),
		), "each call is one entry")

		By("looking at what is told of its calls")
		w.expectCallsToldOf(ctx)
	})
})

// leading makes a task the supervisor of the contract port, whose workers do what they are told.
func leading(lead *clewv1.Task, p pushed, change ...func(*clewv1.Task)) *clewv1.Task {
	lead.Spec.Role, lead.Spec.Contract = clewv1.RoleSupervisor, &clewv1.Contract{Name: "port"}
	lead.Spec.Repository = &clewv1.Repository{URL: p.url, CredentialsSecretRef: &clewv1.NameReference{Name: "git"}}
	lead.Spec.Publish = &clewv1.Publish{Branch: "clew/port", When: clewv1.PublishCalled}
	template := &clewv1.ChildTemplate{Container: &clewv1.ChildContainer{Image: demoImage, Command: []string{"sh", "-euc", writesWhatItIsTold}}}
	if lead.Spec.Agent.Type != clewv1.AgentExec {
		template.Agent = &clewv1.ChildAgent{Type: clewv1.AgentExec}
	}
	lead.Spec.Children = &clewv1.Children{Maximum: ptr.To[int32](9), AtOnce: ptr.To[int32](4), OnDelete: clewv1.ChildrenDelete, Template: template}
	for _, c := range change {
		c(lead)
	}
	return lead
}

// untilWorkDone waits until the work is done that leadsWork is about, and looks at all that has come of it.
func (w *world) untilWorkDone(ctx context.Context, p pushed, within time.Duration) {
	GinkgoHelper()
	lead := w.untilState(ctx, "lead", within, clewv1.ReasonCompleted, clewv1.ReasonAgentFailed, clewv1.ReasonBackoffLimit)
	w.reportContract(ctx, "port", "lead")
	Expect(state(lead)).To(Equal(clewv1.ReasonCompleted), conditionMessage(lead))

	By("looking at what it has made")
	Expect(lead.Status.Contract.Phase).To(Equal(clewv1.PhaseReview))
	n := int32(len(phasesOfWork))
	w.eventually(ctx, w.task).WithArguments(ctx, "lead").WithTimeout(restartTime).Should(HaveField("Status.Children", HaveValue(
		And(HaveField("Total", Equal(n)), HaveField("Completed", Equal(n))))))
	for name, phase := range phasesOfWork {
		child := w.task(ctx, "lead-"+name)
		Expect(child.Spec.RequestedBy).To(HaveValue(HaveField("Created", "task:lead")), "who made the task %s", name)
		Expect(child.Status.Contract.Phase).To(Equal(phase), "the phase of the task %s", name)
	}
	Expect(p.git(ctx, "show clew/port:fast.txt")).To(Equal("fast"))
	Expect(p.git(ctx, "show clew/port:parser.txt")).To(Equal("parser"))
	Expect(p.git(ctx, "log --format='%an: %s' clew/port")).To(HavePrefix("Clew: "))
	Expect(strings.Fields(p.git(ctx, "for-each-ref --format='%(refname)'"))).To(ConsistOf("refs/heads/main", "refs/heads/clew/port"))
	rewinds := 0
	for _, e := range w.timeline(ctx, "lead-wrong") {
		if e.Reason == clewv1.EventTaskRewound {
			rewinds++
		}
	}
	Expect(rewinds).To(Equal(1), "rewinds of the task that went wrong")

	By("looking at the phases, each of which began with a checkpoint of its own")
	var phases []string
	for _, e := range w.timeline(ctx, "lead") {
		if e.Reason == clewv1.EventPhaseChanged {
			change, _, _ := strings.Cut(e.Message, ",")
			phases = append(phases, change[strings.LastIndex(change, " ")+1:])
		}
	}
	Expect(phases).To(ConsistOf(clewv1.DefaultPhases()), "phases that it entered, each once")
	starts := map[int64]bool{}
	for _, e := range lead.Status.Contract.Entered {
		starts[e.Checkpoint] = true
	}
	Expect(starts).To(HaveLen(len(clewv1.DefaultPhases())), "checkpoints with which they began")
}

// callsOf counts the calls of tools in a supervisor's timeline, by tool and outcome.
func (w *world) callsOf(ctx context.Context, supervisor string) map[string]int {
	GinkgoHelper()
	calls := map[string]int{}
	for _, e := range w.timeline(ctx, supervisor) {
		if e.Reason == clewv1.EventToolCalled {
			tool, _, _ := strings.Cut(strings.TrimPrefix(e.Message, "the agent called "), ":")
			tool, byServer := strings.CutSuffix(tool, " and was refused")
			tool, _, _ = strings.Cut(tool, " (")
			tool, byManager := strings.CutSuffix(tool, " was refused")
			if byServer || byManager {
				tool = "refused " + tool
			}
			calls[tool]++
		}
	}
	return calls
}

// reportContract adds to the spec's report what is told of a contract.
func (w *world) reportContract(ctx context.Context, contract, supervisor string) {
	GinkgoHelper()
	for _, args := range [][]string{{"timeline", "--contract", contract, "--limit", "0"}, {"tree", "--contract", contract}, {"task", "history", supervisor}} {
		out, err := exec.CommandContext(ctx, "kubectl", append([]string{"clew", "--namespace", w.namespace}, args...)...).CombinedOutput()
		AddReportEntry("kubectl clew "+strings.Join(args, " "), fmt.Sprintf("%s%v", out, err), ReportEntryVisibilityFailureOrVerbose)
	}
}

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	"k8s.io/utils/ptr"

	historyv1 "github.com/clew-dev/clew/api/history/v1alpha1"
	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/pathmatch"
	"github.com/clew-dev/clew/internal/testing/rewindmatrix"
)

// listening is an agent that says, and remembers in its home, what it is told through a pipe, and
// ends when it is told to. At its start it says nothing.
var listening = []string{"sh", "-c", `
mkfifo /tmp/told
while true; do
  while read -r line; do
    case $line in exit*) exit "${line#exit }" ;; esac
    echo "$line" >> "$HOME/session"
    printf '{"type":"message","text":"%s"}\n' "$line"
  done < /tmp/told
done`}

// goodTurn begins with a commit of the agent's own, and adds every kind of file that a rewind has
// to tell apart.
const goodTurn = `
cd /workspace
git config user.email agent@example.com; git config user.name Agent
mkdir -p picked left; echo old > picked/old.txt; echo run > picked/run.sh; chmod 755 picked/run.sh
ln -s old.txt picked/link; echo kept > left/kept.txt; echo '*.ignored' >> .gitignore
git add -A .; git commit -q -m "The agent's own commit"
echo made > a.ignored; chmod 600 picked/old.txt; mkdir -m 700 empty
git init -q nested; (cd nested; git config user.email n@x; git config user.name N; echo n > n; git add n; git commit -q -m n; echo dirty >> n)
echo staged > left/staged.txt; git add left/staged.txt; echo more >> left/staged.txt
`

// badTurn changes all of it, and the agent's repository.
const badTurn = `
cd /workspace
git checkout -q -b wrong-turn
echo wrong >> README.md; git commit -q -a -m "A wrong turn"
rm picked/old.txt left/kept.txt; mkdir picked/deep; echo new > picked/deep/new.txt; chmod 644 picked/run.sh; ln -sf nowhere picked/link
echo new > left/new.txt; chmod 640 left/staged.txt; echo again > a.ignored; rmdir empty; echo file > empty; echo dirtier >> nested/n; echo n > nested/new
rm "$(git ls-files vendor | tail -n 1)"; echo half > half; git add half; echo more >> half
`

// pickedPaths select some files of both turns.
var pickedPaths = []string{"picked/", "READ*.md", "half"}

// rewindable is a task that has taken a wrong turn, with the moments to which it may be rewound.
type rewindable struct {
	*world
	name  string
	state rewindmatrix.State
	// start is the moment of the origin's commit, own that of the agent's, and good that of the
	// checkpoint of this name.
	start, own, good moment
	checkpoint       clewv1.Checkpoint
	commits          map[string]string // of start, own and good
	goodTime         string
	undrifted        entry // the file that was changed by hand, as it was before
	tally            tally
}

// tally counts cells.
type tally struct{ Legal, Refused, Undone, Agreed int }

// newRewindable makes a task in a state.
func (w *world) newRewindable(ctx context.Context, state rewindmatrix.State) *rewindable {
	GinkgoHelper()
	r := &rewindable{world: w, name: "turned", state: state, commits: map[string]string{}}
	task := w.newTask(r.name, listening...)
	task.Spec.BackoffLimit = ptr.To[int32](0)
	task.Spec.CheckpointPolicy.EveryToolCalls = ptr.To[int32](0)
	w.create(ctx, task)
	head := func() string { return strings.TrimSpace(w.inAgent(ctx, r.name, "git -C /workspace rev-parse HEAD")) }
	r.commits["start"] = head()
	r.start = w.readMoment(ctx, r.name)
	r.say(ctx, "I begin.")
	own, rest, _ := strings.Cut(goodTurn, "echo made >")
	w.inAgent(ctx, r.name, own)
	r.own, r.commits["own"] = w.readMoment(ctx, r.name), head()
	w.inAgent(ctx, r.name, "cd /workspace; echo made >"+rest)
	r.say(ctx, "This is good.")
	r.checkpoint = w.take(ctx, r.name, "good")
	r.good, r.commits["good"] = w.readMoment(ctx, r.name), r.checkpoint.Status.Commit
	said := w.conversation(ctx, r.name)
	r.goodTime = said[len(said)-1].Time.UTC().Format(time.RFC3339Nano)
	w.inAgent(ctx, r.name, badTurn)
	r.say(ctx, "This is bad.")
	r.say(ctx, "And this is worse.")
	r.stop(ctx)
	return r
}

// say makes the agent say something, and waits until it is in the history.
func (r *rewindable) say(ctx context.Context, text string) {
	GinkgoHelper()
	r.inAgent(ctx, r.name, fmt.Sprintf("echo '%s' > /tmp/told", text))
	Eventually(ctx, func() []string { return texts(r.conversation(ctx, r.name), "assistant") }).WithTimeout(time.Minute).WithPolling(between).Should(ContainElement(text))
}

// stop brings the task from running to its state.
func (r *rewindable) stop(ctx context.Context) {
	GinkgoHelper()
	switch r.state {
	case rewindmatrix.Suspended:
		r.patchSpec(ctx, r.name, map[string]any{"operatingMode": "Suspended"})
		r.untilState(ctx, r.name, 2*time.Minute, clewv1.ReasonSuspended)
	case rewindmatrix.Failed:
		r.end(ctx, 3)
		r.untilState(ctx, r.name, 2*time.Minute, clewv1.ReasonAgentFailed)
	case rewindmatrix.Completed:
		r.end(ctx, 0)
		r.untilState(ctx, r.name, 2*time.Minute, clewv1.ReasonCompleted)
	}
}

// end makes the agent exit, which may kill the command that tells it to.
func (r *rewindable) end(ctx context.Context, code int) {
	GinkgoHelper()
	pod := r.untilAgentRuns(ctx, r.name, time.Minute)
	_, _ = r.kubectlIn(ctx, nil, "exec", pod.Name, "-c", "agent", "--", "sh", "-c", fmt.Sprintf("echo exit %d > /tmp/told", code))
}

// restart brings a task back to its state that was rewound after its end.
func (r *rewindable) restart(ctx context.Context, id string) {
	GinkgoHelper()
	if r.state == rewindmatrix.Running || r.state == rewindmatrix.Suspended {
		return
	}
	r.patchSpec(ctx, r.name, map[string]any{"resume": map[string]any{"id": id, "prompt": "Go on."}})
	r.stop(ctx)
}

// afterwards is the state in which a rewind leaves the task.
func (r *rewindable) afterwards() string {
	switch r.state {
	case rewindmatrix.Running:
		return clewv1.ReasonRunning
	case rewindmatrix.Suspended:
		return clewv1.ReasonSuspended
	}
	return clewv1.ReasonRewound
}

// carryOut previews and carries out the rewind of a legal cell, and undoes it.
func (r *rewindable) carryOut(ctx context.Context, cell rewindmatrix.Cell, commit string) {
	GinkgoHelper()
	id := cell.ID() + commit
	By(id)
	r.tally.Legal++
	request := r.requestOf(cell, commit)
	if cell.Target == rewindmatrix.Undo {
		turn := cell
		turn.Target = rewindmatrix.Checkpoint
		r.rewindTo(ctx, r.requestOf(turn, ""), id+"-do")
		request = rewindRequest{to: map[string]any{"undoOf": id + "-do"}, query: "undoOf=" + id + "-do", preserve: cell.Preserve}
		defer r.rewindTo(ctx, rewindRequest{to: map[string]any{"undoOf": id + "-undo"}, preserve: cell.Preserve}, id+"-redo")
	}
	before := r.readMoment(ctx, r.name)
	after := r.seenBefore(ctx, cell, request, id, before)
	if cell.Target != rewindmatrix.Undo {
		r.expectRewound(cell, commit, before, after)
	}
	By("undoing it")
	undo := rewindRequest{to: map[string]any{"undoOf": id}, query: "undoOf=" + id, preserve: cell.Preserve}
	undone := r.seenBefore(ctx, cell, undo, id+"-undo", after)
	expectSame(undone, before, "undone")
	r.tally.Undone++
}

// rewindRequest is a rewind without its id: its fields, and the parameters of its preview.
type rewindRequest struct {
	to       map[string]any
	query    string
	scope    clewv1.RewindScope
	preserve clewv1.PreserveMode
	paths    []string
}

// requestOf returns the request of a cell that is no undo.
func (r *rewindable) requestOf(cell rewindmatrix.Cell, commit string) rewindRequest {
	q := rewindRequest{scope: cell.Scope, preserve: cell.Preserve}
	switch number := r.checkpoint.Status.Number; cell.Target {
	case rewindmatrix.Checkpoint:
		q.to, q.query = map[string]any{"checkpointNumber": number}, fmt.Sprintf("checkpointNumber=%d", number)
	case rewindmatrix.Commit:
		q.to, q.query = map[string]any{"commit": r.commits[commit]}, "commit="+r.commits[commit]
	case rewindmatrix.Time:
		q.to, q.query = map[string]any{"time": r.goodTime}, "time="+r.goodTime
	case rewindmatrix.Message:
		q.to, q.query = map[string]any{"message": len(r.good.messages)}, fmt.Sprintf("message=%d", len(r.good.messages))
	}
	q.query += "&scope=" + string(cell.Scope)
	if cell.Paths {
		q.paths = pickedPaths
		for _, p := range pickedPaths {
			q.query += "&path=" + p
		}
	}
	return q
}

// rewindTo requests a rewind and waits for its end, and for the state after it.
func (r *rewindable) rewindTo(ctx context.Context, q rewindRequest, id string) clewv1.OperationStatus {
	GinkgoHelper()
	out, err := r.applyRewind(ctx, q, id)
	Expect(err).NotTo(HaveOccurred(), "rewind %s: %s", id, out)
	task := r.untilRewound(ctx, r.name, id, 3*time.Minute)
	r.untilState(ctx, r.name, time.Minute, r.afterwards())
	if r.state == rewindmatrix.Running {
		r.untilAgentRuns(ctx, r.name, time.Minute)
	}
	return *task.Status.Rewind
}

// applyRewind sets spec.rewind as a whole.
func (r *rewindable) applyRewind(ctx context.Context, q rewindRequest, id string) (string, error) {
	rewind := map[string]any{"id": id, "to": q.to, "preserve": q.preserve}
	if q.scope != "" {
		rewind["scope"] = q.scope
	}
	if q.paths != nil {
		rewind["paths"] = q.paths
	}
	patch, err := json.Marshal([]map[string]any{{"op": "add", "path": "/spec/rewind", "value": rewind}})
	if err != nil {
		return "", err
	}
	return r.kubectlIn(ctx, nil, "patch", "task", r.name, "--type=json", "-p", string(patch))
}

// seenBefore asks for the preview of a rewind, carries it out, and compares what happened. It
// returns the moment after it.
func (r *rewindable) seenBefore(ctx context.Context, cell rewindmatrix.Cell, q rewindRequest, id string, before moment) moment {
	GinkgoHelper()
	preview := r.previews(ctx, r.name, q.query+"&limit=1000&id="+id+"&preserve="+string(q.preserve))
	done := r.rewindTo(ctx, q, id)
	after := r.readMoment(ctx, r.name)
	expectPreviewed(preview, before, after)
	Expect(preview.Stops != nil).To(Equal(r.state == rewindmatrix.Running), "what stops")
	r.expectKept(preview.Keeps, done, cell, id)
	r.tally.Agreed++
	return after
}

// expectPreviewed compares a preview with what happened.
func expectPreviewed(preview historyv1.RewindPreview, before, after moment) {
	GinkgoHelper()
	changes := map[string]string{}
	if preview.Files != nil {
		changes = changesOf(preview.Files.Items)
	}
	Expect(changes).To(Equal(before.changesTo(after)), "the files of the preview")
	if preview.Conversation == nil {
		Expect(after.messages).To(Equal(before.messages), "no message goes")
		return
	}
	common := 0
	for common < min(len(before.messages), len(after.messages)) && before.messages[common] == after.messages[common] {
		common++
	}
	Expect(*preview.Conversation).To(And(HaveField("FromPosition", int64(len(before.messages))), HaveField("ToPosition", int64(len(after.messages))),
		HaveField("Dropped", int64(len(before.messages)-common)), HaveField("Restored", int64(len(after.messages)-common))), "the messages of the preview")
}

// expectKept expects that the state before a rewind was kept as the preview says.
func (r *rewindable) expectKept(keeps historyv1.KeptState, done clewv1.OperationStatus, cell rewindmatrix.Cell, id string) {
	GinkgoHelper()
	Expect(done.FromCheckpoint).To(BeNumerically(">", 0), "a checkpoint holds the state before")
	switch want := string(cell.Preserve); {
	case cell.Scope == clewv1.RewindConversation, want == string(clewv1.PreserveDiscard):
		Expect(keeps).To(Equal(historyv1.KeptState{Preserve: string(clewv1.PreserveDiscard)}))
		Expect(done.Preserved).To(BeEmpty())
	case want == string(clewv1.PreserveBranch):
		Expect(keeps).To(Equal(historyv1.KeptState{Preserve: want, Branch: "clew/before-" + id}))
		Expect(done.Preserved).To(ContainSubstring(keeps.Branch))
	default:
		Expect(keeps).To(Equal(historyv1.KeptState{Preserve: want}))
		Expect(done.Preserved).To(ContainSubstring("stash"))
	}
}

// expectRewound expects what the documentation says of a cell.
func (r *rewindable) expectRewound(cell rewindmatrix.Cell, commit string, before, after moment) {
	GinkgoHelper()
	want := before
	if cell.Scope != clewv1.RewindConversation {
		want.files = r.filesAfter(cell, commit, before)
		if !cell.Files() {
			want.git = r.good.git
		}
	}
	if cell.Scope != clewv1.RewindCode {
		want.session, want.messages = r.good.session, r.good.messages
	}
	if cell.Target == rewindmatrix.Commit { // a commit knows no more than git does
		want.files, after.files = gitFiles(want.files), gitFiles(after.files)
	}
	expectSame(after, want, "rewound")
}

// filesAfter returns the files after a rewind of the code.
func (r *rewindable) filesAfter(cell rewindmatrix.Cell, commit string, before moment) map[string]entry {
	target := map[string]moment{"": r.good, "good": r.good, "own": r.own, "start": r.start}[commit]
	paths, err := pathmatch.New(nil)
	if cell.Paths {
		paths, err = pathmatch.New(pickedPaths)
	}
	Expect(err).NotTo(HaveOccurred())
	after := maps.Clone(target.files)
	for path := range after {
		if !paths.Match(path) {
			delete(after, path)
		}
	}
	// A commit of the agent's knows neither ignored files nor nested repositories.
	foreign := cell.Target == rewindmatrix.Commit && commit != "good"
	for path, e := range before.files {
		if !paths.Match(path) || foreign && (strings.HasPrefix(path, "nested/") || commit == "own" && path == "a.ignored") {
			after[path] = e
		}
	}
	return after
}

// expectSame expects one moment to be another.
func expectSame(got, want moment, what string) {
	GinkgoHelper()
	Expect(differences(got.files, want.files)).To(BeEmpty(), "the files, %s", what)
	Expect(differences(got.session, want.session)).To(BeEmpty(), "the agent's session, %s", what)
	Expect(got.git).To(Equal(want.git), "the agent's repository, %s", what)
	Expect(got.messages).To(Equal(want.messages), "the conversation, %s", what)
}

// differences lists the entries that differ.
func differences(got, want map[string]entry) []string {
	var list []string
	for path, e := range got {
		if is, ok := want[path]; !ok {
			list = append(list, path+" should not be there")
		} else if is != e {
			list = append(list, fmt.Sprintf("%s is %+v and should be %+v", path, e, is))
		}
	}
	for path, e := range want {
		if _, ok := got[path]; !ok {
			list = append(list, fmt.Sprintf("%s (%s) is missing", path, fs.FileMode.String(e.kind)))
		}
	}
	slices.Sort(list)
	return list
}

// refuse requests the rewind of an illegal cell, or that of an undo with fields that it leaves out.
func (r *rewindable) refuse(ctx context.Context, cell rewindmatrix.Cell) {
	GinkgoHelper()
	q := r.requestOf(cell, "own")
	if cell.Target == rewindmatrix.Undo {
		q.to = map[string]any{"undoOf": "resume:earlier"}
	}
	_, err := r.applyRewind(ctx, q, cell.ID())
	for _, sentence := range cell.Refusals() {
		Expect(err).To(MatchError(ContainSubstring(sentence)), "%s", cell)
	}
	r.tally.Refused++
}

var _ = Describe("rewinds of every kind", long, func() {
	w := newWorld()

	DescribeTable("do what their preview says, and are undone exactly", func(ctx SpecContext, cell rewindmatrix.Cell, commit string) {
		r := w.newRewindable(ctx, cell.State)
		r.carryOut(ctx, cell, commit)
	},
		Entry("of a running task", SpecTimeout(10*time.Minute), rewindmatrix.Cell{State: rewindmatrix.Running, Target: rewindmatrix.Time, Scope: clewv1.RewindBoth, Preserve: clewv1.PreserveStash}, ""),
		Entry("of a suspended task", SpecTimeout(10*time.Minute), rewindmatrix.Cell{State: rewindmatrix.Suspended, Target: rewindmatrix.Undo, Scope: clewv1.RewindCode, Preserve: clewv1.PreserveBranch, Paths: true}, ""),
		Entry("of a failed task", SpecTimeout(10*time.Minute), rewindmatrix.Cell{State: rewindmatrix.Failed, Target: rewindmatrix.Message, Scope: clewv1.RewindConversation, Preserve: clewv1.PreserveDiscard}, ""),
		Entry("of a completed task", SpecTimeout(10*time.Minute), rewindmatrix.Cell{State: rewindmatrix.Completed, Target: rewindmatrix.Commit, Scope: clewv1.RewindCode, Preserve: clewv1.PreserveBranch}, "own"),
	)
})

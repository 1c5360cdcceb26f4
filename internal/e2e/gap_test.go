//go:build e2e && soak

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// talker says three long things; once the file "more" exists, a hundred more, of which a
// volume keeps only the newest; and once the file "end" exists, the last one.
var talker = []string{"bash", "-c", `
	pad=$(head -c 100000 /dev/zero | tr '\0' .)
	say() { echo "{\"type\":\"message\",\"role\":\"assistant\",\"text\":\"$1 $pad\"}"; }
	for i in 1 2 3; do say "thing $i"; done
	until [ -e /workspace/more ]; do sleep 0.1; done
	for i in {4..103}; do say "thing $i"; done
	until [ -e /workspace/end ]; do sleep 0.1; done
	say "thing 104"`}

// Serial: it restores a store that every task needs.
var _ = Describe("the history of a task that an older Postgres lost for good", Serial, Label("slow", "soak"), func() {
	w := newWorld()

	It("has a gap that is counted exactly and reported", func(ctx SpecContext) {
		store := &volumeStore{component: "postgres", workload: "statefulset/clew-postgres"}
		w.managerWith(ctx, "--spool-margin=0s", "--spool-margin-bytes=0")
		task := w.newTask("talker", talker...)
		task.Spec.CheckpointPolicy.EverySeconds = ptr.To[int32](0) // a checkpoint's record is never lost, and would split the gap
		w.create(ctx, task)
		w.untilSaid(ctx, "talker", 3)
		store.copy(ctx, w)
		copied := w.export(ctx, "talker")
		w.inAgent(ctx, "talker", "touch /workspace/more")
		w.untilSaid(ctx, "talker", 103)
		kept := w.untilKept(ctx, "talker", copied.LastSequence)
		before := w.export(ctx, "talker")

		store.putBack(ctx, w)
		w.untilSystemReady(ctx, restartTime)
		lost := kept - 1 - copied.LastSequence
		By(fmt.Sprintf("losing %d records: the older copy ends with record %d, the volume keeps those from %d", lost, copied.LastSequence, kept))
		w.inAgent(ctx, "talker", "touch /workspace/end") // an idle sidecar checks every five minutes only
		w.untilState(ctx, "talker", 3*time.Minute, clewv1.ReasonCompleted)

		Expect(lost).To(BeNumerically(">", 0), "records must be lost for this spec to test anything")
		after := w.export(ctx, "talker")
		for sequence, text := range before.Messages {
			if sequence > copied.LastSequence && sequence < kept {
				Expect(after.Messages[sequence]).NotTo(Equal(text), "record %d is lost", sequence)
				continue
			}
			Expect(after.Messages[sequence]).To(Equal(text), "record %d was not lost", sequence)
		}
		Expect(after.Messages).To(ContainElement(HavePrefix("thing 104 ")), "the task continued")
		w.expectGapReported(ctx, "talker", copied.LastSequence+1, kept-1)
		reportCount(1, "gaps, each counted exactly")
	})
})

// expectGapReported expects the gap in the condition, an Event, the timeline and
// the conversation.
func (w *world) expectGapReported(ctx context.Context, name string, from, through int64) {
	GinkgoHelper()
	lost := through - from + 1
	saysHowMany := HavePrefix("%d record", lost)
	w.eventually(ctx, func() []metav1.Condition { return w.task(ctx, name).Status.Conditions }).WithTimeout(time.Minute).
		Should(ContainElement(SatisfyAll(
			HaveField("Type", clewv1.TaskHistoryComplete), HaveField("Status", metav1.ConditionFalse),
			HaveField("Reason", clewv1.ReasonHistoryGap), HaveField("Message", saysHowMany))), "the condition reports the gap")
	Expect(w.task(ctx, name).Status.LostRecords).To(Equal(lost))
	Eventually(ctx, func() []string {
		return w.events(ctx, func(e corev1.Event) string { return e.Reason + ": " + e.Message })
	}).WithTimeout(time.Minute).Should(ContainElement(HavePrefix("%s: %d record", clewv1.EventHistoryGap, lost)), "an Event reports the gap")
	text := fmt.Sprintf("The history has a gap: %d records (%d to %d) were lost when the history store was restored from an older copy.", lost, from, through)
	var messages []string
	for _, e := range w.timeline(ctx, name) {
		if e.Reason == clewv1.EventHistoryGap {
			messages = append(messages, e.Message)
		}
	}
	Expect(messages).To(ContainElement(text), "the timeline says which records were lost")
	Expect(texts(w.conversation(ctx, name), "system")).To(ContainElement(text), "the conversation has it where the records were")
}

// untilSaid waits until the history has a number of things that the talker said.
func (w *world) untilSaid(ctx context.Context, task string, n int) {
	GinkgoHelper()
	Eventually(ctx, w.tryExport).WithArguments(task).WithTimeout(3*time.Minute).Should(
		HaveField("Messages", ContainElement(HavePrefix(fmt.Sprintf("thing %d ", n)))), "task %s has said %d things", task, n)
}

// untilKept waits until the task's volume has dropped records after a sequence and keeps
// only the segment that it writes to. It returns the first record that it keeps.
func (w *world) untilKept(ctx context.Context, task string, after int64) (first int64) {
	GinkgoHelper()
	folder := w.volumeFolder(ctx, w.namespace, task+"-workspace")
	Eventually(ctx, func() error {
		segments, err := filepath.Glob(filepath.Join(folder, "clew", "spool", "*.log"))
		if err != nil {
			return err
		}
		if len(segments) != 1 {
			return fmt.Errorf("the volume keeps the segments %v", segments)
		}
		first, err = strconv.ParseInt(strings.TrimSuffix(filepath.Base(segments[0]), ".log"), 10, 64)
		if err == nil && first <= after+1 {
			err = fmt.Errorf("the volume keeps everything from record %d", first)
		}
		return err
	}).WithTimeout(time.Minute).Should(Succeed(), "the volume drops what the history has")
	return first
}

// exported is the part of an export that the spec compares.
type exported struct {
	LastSequence int64
	Messages     map[int64]string // the beginning of each message, by its record
}

func (w *world) export(ctx context.Context, task string) *exported {
	GinkgoHelper()
	e, err := w.tryExport(ctx, task)
	Expect(err).NotTo(HaveOccurred(), "export task %s", task)
	return e
}

func (w *world) tryExport(ctx context.Context, task string) (*exported, error) {
	body, err := w.rawQuery(ctx, fmt.Sprintf("/apis/history.clew.dev/v1alpha1/namespaces/%s/taskhistories/%s/export", w.namespace, task))
	if err != nil {
		return nil, err
	}
	e := &exported{Messages: map[int64]string{}}
	for line := range strings.Lines(string(body)) {
		var l struct {
			Kind string
			Body struct {
				LastSequence, Sequence int64
				Text                   json.RawMessage
			}
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			return nil, err
		}
		var text struct{ Text string }
		switch l.Kind {
		case "task":
			e.LastSequence = l.Body.LastSequence
		case "message":
			if l.Body.Text != nil {
				err = json.Unmarshal(l.Body.Text, &text)
			}
			e.Messages[l.Body.Sequence] = text.Text[:min(len(text.Text), 20)]
		}
		if err != nil {
			return nil, err
		}
	}
	return e, nil
}

// managerWith gives the manager more options until the spec ends.
func (w *world) managerWith(ctx context.Context, options ...string) {
	GinkgoHelper()
	const manager = "deployment/clew-manager"
	set := func(ctx context.Context, args []string) {
		GinkgoHelper()
		patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": args}})
		Expect(err).NotTo(HaveOccurred())
		w.kubectl(ctx, "--namespace", systemNamespace, "patch", manager, "--type=json", "--patch", string(patch))
		w.kubectl(ctx, "--namespace", systemNamespace, "rollout", "status", manager, "--timeout=120s")
	}
	var args []string
	was := w.kubectl(ctx, "--namespace", systemNamespace, "get", manager, "-o", "jsonpath={.spec.template.spec.containers[0].args}")
	Expect(json.Unmarshal([]byte(was), &args)).To(Succeed())
	DeferCleanup(func(ctx SpecContext) { set(ctx, args) })
	set(ctx, slices.Concat(args, options))
	w.untilSystemReady(ctx, 2*time.Minute)
}

//go:build e2e && soak

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	clewv1 "github.com/clew-dev/clew/api/v1alpha1"
)

// talker says three long things, when it is told so a hundred more, of which a
// volume keeps the newest alone, and when it is told so again the last one.
var talker = []string{"bash", "-c", `
	pad=$(head -c 100000 /dev/zero | tr '\0' .)
	say() { echo "{\"type\":\"message\",\"role\":\"assistant\",\"text\":\"$1 $pad\"}"; }
	for i in 1 2 3; do say "thing $i"; done
	until [ -e /workspace/more ]; do sleep 0.1; done
	for i in {4..103}; do say "thing $i"; done
	until [ -e /workspace/end ]; do sleep 0.1; done
	say "thing 104"`}

// Not parallel: it puts back what every task needs.
func TestWhatAnOlderPostgresLosesForGoodIsCountedExactly(t *testing.T) {
	w, g := newWorld(t), gomega.NewWithT(t)
	store := &volumeStore{component: "postgres", workload: "statefulset/clew-postgres"}
	w.managerWith("--spool-margin=0s", "--spool-margin-bytes=0")
	task := w.newTask("talker", talker...)
	task.Spec.CheckpointPolicy.EverySeconds = ptr.To[int32](0) // the record of a checkpoint is never lost, and would part the gap
	w.create(task)
	w.untilSaid("talker", 3)
	store.copy(w)
	copied := w.export("talker")
	w.inAgent("talker", "touch /workspace/more")
	w.untilSaid("talker", 103)
	kept := w.untilKept("talker", copied.LastSequence)
	before := w.export("talker")

	store.putBack(w)
	w.untilSystemReady(restartTime)
	lost := kept - 1 - copied.LastSequence
	t.Logf("the older copy ends with record %d, the volume keeps those from %d: %d are lost", copied.LastSequence, kept, lost)
	w.inAgent("talker", "touch /workspace/end") // an idle daemon looks every five minutes
	w.untilState("talker", 3*time.Minute, clewv1.ReasonCompleted)

	g.Expect(lost).To(gomega.BeNumerically(">", 0), "the test is about a loss")
	after := w.export("talker")
	for sequence, text := range before.Messages {
		if sequence > copied.LastSequence && sequence < kept {
			g.Expect(after.Messages[sequence]).NotTo(gomega.Equal(text), "record %d is lost", sequence)
			continue
		}
		g.Expect(after.Messages[sequence]).To(gomega.Equal(text), "record %d is not lost", sequence)
	}
	g.Expect(after.said("thing 104")).To(gomega.BeTrue(), "the task went on")
	w.expectGapTold("talker", copied.LastSequence+1, kept-1)
	w.tell(1, "gaps, each counted exactly")
}

// expectGapTold expects the gap in all places where people look for it.
func (w *world) expectGapTold(name string, from, through int64) {
	w.Helper()
	g := gomega.NewWithT(w.T)
	lost := through - from + 1
	var task *clewv1.Task
	w.until("the condition tells of the gap", time.Minute, func() error {
		task = w.task(name)
		c := meta.FindStatusCondition(task.Status.Conditions, clewv1.TaskHistoryComplete)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != clewv1.ReasonHistoryGap || !strings.HasPrefix(c.Message, fmt.Sprintf("%d record", lost)) {
			return fmt.Errorf("it is %+v", c)
		}
		return nil
	})
	g.Expect(task.Status.LostRecords).To(gomega.Equal(lost))
	w.until("an Event tells of the gap", time.Minute, func() error {
		out := w.kubectl("get", "events", "--field-selector", "reason="+clewv1.EventHistoryGap, "-o", "jsonpath={.items[*].message}")
		if !strings.HasPrefix(out, fmt.Sprintf("%d record", lost)) {
			return fmt.Errorf("they say %q", out)
		}
		return nil
	})
	text := fmt.Sprintf("The history has a gap: %d records (%d to %d) were lost when the history store was put back to an older copy.", lost, from, through)
	var told []string
	for _, e := range w.timeline(name) {
		if e.Reason == clewv1.EventHistoryGap {
			told = append(told, e.Message)
		}
	}
	g.Expect(told).To(gomega.ContainElement(text), "the timeline says which")
	g.Expect(texts(w.conversation(name), "system")).To(gomega.ContainElement(text), "the conversation says so at its place")
}

// untilSaid waits until the history has so many things that the talker said.
func (w *world) untilSaid(task string, n int) {
	w.Helper()
	w.until(fmt.Sprintf("task %s has said %d things", task, n), 3*time.Minute, func() error {
		e, err := w.tryExport(task)
		if err == nil && !e.said(fmt.Sprintf("thing %d", n)) {
			err = errors.New("it has not")
		}
		return err
	})
}

// untilKept waits until the task's volume has let go of records that come after
// a sequence, and keeps no more than the segment it writes to. It returns the
// first that is kept.
func (w *world) untilKept(task string, after int64) (first int64) {
	w.Helper()
	folder := w.volumeFolder(w.namespace, task+"-workspace")
	w.until("the volume lets go of what the history has", time.Minute, func() error {
		segments, err := filepath.Glob(filepath.Join(folder, "clew", "spool", "*.log"))
		if err != nil {
			return err
		}
		if len(segments) != 1 {
			return fmt.Errorf("it keeps %v", segments)
		}
		first, err = strconv.ParseInt(strings.TrimSuffix(filepath.Base(segments[0]), ".log"), 10, 64)
		if err == nil && first <= after+1 {
			err = fmt.Errorf("it keeps all from %d", first)
		}
		return err
	})
	return first
}

// exported is what is looked at of an export.
type exported struct {
	LastSequence int64
	Messages     map[int64]string // the beginning of each message, by its record
}

func (e *exported) said(thing string) bool {
	for _, text := range e.Messages {
		if strings.HasPrefix(text, thing+" ") {
			return true
		}
	}
	return false
}

func (w *world) export(task string) *exported {
	w.Helper()
	e, err := w.tryExport(task)
	if err != nil {
		w.Fatalf("export task %s: %v", task, err)
	}
	return e
}

func (w *world) tryExport(task string) (*exported, error) {
	body, err := w.rawQuery(fmt.Sprintf("/apis/history.clew.dev/v1alpha1/namespaces/%s/taskhistories/%s/export", w.namespace, task))
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

// managerWith gives the manager more options for the time of the test.
func (w *world) managerWith(options ...string) {
	w.Helper()
	const manager = "deployment/clew-manager"
	// The test's own context ends before what it has to put right.
	kubectl := func(args ...string) string {
		w.Helper()
		out, err := w.kubectlIn(context.Background(), nil, append([]string{"--namespace", systemNamespace}, args...)...)
		if err != nil {
			w.Fatalf("kubectl %s: %v", strings.Join(args, " "), err)
		}
		return out
	}
	set := func(args []string) {
		w.Helper()
		patch, err := json.Marshal([]map[string]any{{"op": "replace", "path": "/spec/template/spec/containers/0/args", "value": args}})
		if err != nil {
			w.Fatal(err)
		}
		kubectl("patch", manager, "--type=json", "--patch", string(patch))
		kubectl("rollout", "status", manager, "--timeout=120s")
	}
	var args []string
	if err := json.Unmarshal([]byte(kubectl("get", manager, "-o", "jsonpath={.spec.template.spec.containers[0].args}")), &args); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { set(args) })
	set(slices.Concat(args, options))
	w.untilSystemReady(2 * time.Minute)
}

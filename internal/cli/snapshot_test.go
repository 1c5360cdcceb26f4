package cli

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clew-dev/clew/api/v1alpha1"
)

func TestSnapshotCreateAndList(t *testing.T) {
	b := newBench(t)
	task := b.task("worker", v1alpha1.ReasonRunning)
	b.checkpoint(task, 1)
	playManager(b, &v1alpha1.ConversationSnapshotList{}, func(c *v1alpha1.ConversationSnapshot) bool {
		c.Status = v1alpha1.ConversationSnapshotStatus{
			Conversation: &v1alpha1.ConversationPosition{Position: 12}, MessageCount: 12, Digest: strings.Repeat("ab", 32), Trigger: v1alpha1.SnapshotManual,
			InputTokens: 1000, CostMicroUSD: 1500, Checkpoint: 1,
			Conditions: []metav1.Condition{
				{Type: v1alpha1.SnapshotReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonResolved, LastTransitionTime: metav1.NewTime(noon)},
				{Type: v1alpha1.SnapshotIntact, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonVerified, LastTransitionTime: metav1.NewTime(noon)},
			},
		}
		return true
	})
	out, _ := b.must("snapshot", "create", "worker", "--at", "13")
	wantText(t, "output", "conversationsnapshot.clew.dev/worker-abcdefgh created: message 12 of worker, digest abababababab…\n", out)
	out, _ = b.must("snapshot", "create", "worker", "--name", "other", "--checkpoint", "1", "--dry-run=server", "-o", "jsonpath={.spec.checkpointRef.name}")
	wantText(t, "checkpoint of the dry run", "worker-1", out)
	out, _ = b.must("snapshot", "list", "worker", "--no-headers")
	if want := "worker-abcdefgh 12 Manual yes 1k $0.0015 1"; !strings.HasPrefix(squeezed(out), want) {
		t.Errorf("snapshot list printed %q; want the prefix %q", out, want)
	}
	out, _ = b.must("snapshot", "list", "-o", "name")
	wantText(t, "names", "conversationsnapshot.clew.dev/worker-abcdefgh\n", out)
	_, _, err := b.clew("", "snapshot", "create", "worker", "--at", "1", "--checkpoint", "1")
	wantError(t, err, "use only one of them")
	_, _, err = b.clew("", "snapshot", "create", "nobody")
	wantError(t, err, `there is no task "nobody"`)
	_, _, err = b.clew("", "snapshot", "list", "nobody")
	wantError(t, err, `there is no task "nobody"`)
}

func TestJudgeSnapshot(t *testing.T) {
	for _, test := range []struct {
		reason string
		err    string
	}{
		{v1alpha1.ReasonHistoryUnavailable, ""},
		{v1alpha1.ReasonCheckpointNotReady, ""},
		{v1alpha1.ReasonPositionNotFound, "was not recorded: what happened (PositionNotFound)"},
		{v1alpha1.ReasonCorrupted, "(Corrupted)"},
	} {
		c := &v1alpha1.ConversationSnapshot{}
		if v := judgeSnapshot(c); v.done || v.err != nil {
			t.Errorf("verdict on a new snapshot: got %+v, want neither done nor an error", v)
		}
		c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.SnapshotReady, Status: metav1.ConditionFalse, Reason: test.reason, Message: "what happened"}}
		wantError(t, judgeSnapshot(c).err, test.err)
	}
}

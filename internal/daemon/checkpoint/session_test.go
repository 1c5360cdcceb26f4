package checkpoint_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/clew-dev/clew/internal/daemon/checkpoint"
	"github.com/clew-dev/clew/internal/daemon/journal"
	"github.com/clew-dev/clew/internal/daemon/mask"
	"github.com/clew-dev/clew/internal/daemon/spool"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/worktree"
)

// notebook is a repository that only remembers the last request.
type notebook struct{ asked worktree.CheckpointRequest }

func (n *notebook) CheckSendable(context.Context, []string, []string) error { return nil }

func (n *notebook) Refs(context.Context, string) (map[string]string, error) { return nil, nil }

func (n *notebook) DeleteRefs(context.Context, ...string) error { return nil }

func (n *notebook) RemoteRefs(context.Context, worktree.Remote, string) (map[string]string, error) {
	return nil, nil
}

func (n *notebook) Checkpoint(_ context.Context, r worktree.CheckpointRequest) (worktree.Checkpoint, error) {
	n.asked = r
	return worktree.Checkpoint{Number: r.Number, Code: "c", State: "s"}, nil
}

func (*notebook) Warm(context.Context, string, func()) (string, error) { return "", nil }

func (*notebook) StoreHead(context.Context, worktree.HeadRequest) error { return nil }

func (*notebook) Heal(context.Context, worktree.Remote) (int, error) { return 0, nil }

func (*notebook) Cold() bool { return false }

func (*notebook) Push(context.Context, worktree.Remote, ...worktree.RefUpdate) error { return nil }

// TestCheckpointContainsItsSession: the record for the history and the commit for whoever
// restores it agree, and no Secret gets into either.
func TestCheckpointContainsItsSession(t *testing.T) {
	dir := t.TempDir()
	j, err := journal.Open(filepath.Join(dir, "journal.json"), nil)
	if err != nil {
		t.Fatal(err)
	}
	s, err := spool.Open(filepath.Join(dir, "spool"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	repo := &notebook{}
	taker := &checkpoint.Taker{Repo: repo, Journal: j, Spool: s, TaskUID: "u", Attempt: 1, Mask: mask.New([]byte("hunter2hunter2"))}
	take := func(r checkpoint.Request) *daemonv1.CheckpointRecord {
		t.Helper()
		if _, err := taker.Take(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		records, err := s.Read(s.Last()-1, 1, 1<<20)
		if err != nil || len(records) != 1 {
			t.Fatalf("read the checkpoint's record: %v, %v", records, err)
		}
		return records[0].GetCheckpoint()
	}

	if r := take(checkpoint.Request{Trigger: "Manual"}); r.GetSession() != nil || checkpoint.Session(repo.asked.Annotations) != nil {
		t.Fatalf("the checkpoint has a session: record %v, annotations %v", r, repo.asked.Annotations)
	}
	session := &daemonv1.AgentSession{Agent: "Codex", Id: "x", Version: "1.2", Counted: &daemonv1.Usage{InputTokens: 9}}
	risky := &daemonv1.RiskyTool{Name: "Bash", CallId: "1", Before: true}
	if err := j.Update(func(s *journal.State) error { return s.SetAgentSession(session) }); err != nil {
		t.Fatal(err)
	}
	r := take(checkpoint.Request{Trigger: "BeforeRiskyTool", RiskyTool: risky, Message: "before hunter2hunter2"})
	want := &daemonv1.CheckpointRecord{Number: 2, Trigger: "BeforeRiskyTool", Message: "before [masked]", RiskyTool: risky, Session: session,
		Attempt: 1, Commit: "c", StateCommit: "s", Parent: "", Time: r.GetTime(), Consistency: "PointInTime"}
	if d := cmp.Diff(want, r, protocmp.Transform()); d != "" {
		t.Fatalf("(-want +got):\n%s", d)
	}
	if strings.Contains(repo.asked.Message, "hunter2") {
		t.Fatalf("the commit says %q", repo.asked.Message)
	}
	if d := cmp.Diff(session, checkpoint.Session(repo.asked.Annotations).Message(), protocmp.Transform()); d != "" {
		t.Fatalf("(-want +got):\n%s", d)
	}
	// A session that the agent would not resume is not worth restoring.
	if err := j.Update(func(s *journal.State) error { s.SessionRefused = "x"; return nil }); err != nil {
		t.Fatal(err)
	}
	if r := take(checkpoint.Request{Trigger: "Manual"}); r.GetSession() != nil || checkpoint.Session(repo.asked.Annotations) != nil {
		t.Fatalf("the checkpoint has a session: record %v, annotations %v", r, repo.asked.Annotations)
	}
	if after := checkpoint.AfterSequence(repo.asked.Annotations); after != s.Last()-1 {
		t.Fatalf("taken after record %d, and recorded as %d", after, s.Last())
	}
	if err := taker.Event("X", "it is hunter2hunter2", map[string]string{"a": "hunter2hunter2"}); err != nil {
		t.Fatal(err)
	}
	records, _ := s.Read(s.Last()-1, 1, 1<<20)
	if e := records[0].GetEvent(); e.GetMessage() != "it is [masked]" || e.GetDetails()["a"] != "[masked]" {
		t.Fatalf("the event contains a Secret: %v", e)
	}
}

// The daemon of an attempt was killed after its last checkpoint was taken, before the
// record was in the spool.
func TestTheNextAttemptRecordsACheckpointUnderTheAttemptThatTookIt(t *testing.T) {
	taker := waiting(t, &notebook{}, 0)
	err := taker.Journal.Update(func(s *journal.State) error {
		return s.SetUnspooled(&daemonv1.CheckpointRecord{Number: 1, Trigger: "Completion", Attempt: 1})
	})
	if err != nil {
		t.Fatal(err)
	}
	taker.Attempt = 2
	if err := taker.Recover(); err != nil {
		t.Fatal(err)
	}
	r, err := taker.Spool.Record(1)
	if err != nil {
		t.Fatal(err)
	}
	want := &daemonv1.Record{Sequence: 1, Id: r.GetId(), Time: r.GetTime(), Attempt: 1,
		Body: &daemonv1.Record_Checkpoint{Checkpoint: &daemonv1.CheckpointRecord{Number: 1, Trigger: "Completion", Attempt: 1}}}
	if d := cmp.Diff(want, r, protocmp.Transform()); d != "" {
		t.Fatalf("record (-want +got):\n%s", d)
	}
}

func TestForeignAnnotations(t *testing.T) {
	for _, a := range []map[string]string{nil, {"agent-session": ""}, {"agent-session": "{torn"}, {"agent-session": `{"record":7}`}, {"agent-session": `{"record":{}}`}, {"record": "{torn"}, {"record": `{"afterSequence":"x"}`}} {
		if s := checkpoint.Session(a); s != nil {
			t.Errorf("%v: %+v", a, s)
		}
		if n := checkpoint.AfterSequence(a); n != 0 {
			t.Errorf("%v: %d", a, n)
		}
	}
}

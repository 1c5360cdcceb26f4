package gateway_test

import (
	"context"
	"errors"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clewv1alpha1 "github.com/clew-dev/clew/api/v1alpha1"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/server/gateway"
	"github.com/clew-dev/clew/internal/testing/cases"
)

var _ = Describe("The gateway", func() {
	// A pod whose Task is gone may still be cached; it cannot begin again.
	It("nothing begins without a task", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t), func(o *gateway.Options) { o.Tasks = gone{} })
		_, err := f.client("a1").Begin(t.Context(), connect.NewRequest(&daemonv1.BeginRequest{}))
		if connect.CodeOf(err) != connect.CodePermissionDenied {
			t.Errorf("begin: %v", err)
		}
	})

	It("a conversation is returned as it was recorded", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t))
		begun := f.begin("a1")
		if begun.GetAttempt() != 1 || begun.GetLastSequence() != 0 {
			t.Errorf("begin returned attempt %d with records up to %d, want 1 and 0", begun.GetAttempt(), begun.GetLastSequence())
		}
		if begun.LatestCheckpoint != nil {
			t.Errorf("a new task has the checkpoint %v", begun.LatestCheckpoint)
		}
		messages := []*daemonv1.Message{
			{Role: daemonv1.Role_ROLE_USER, Text: "do it"},
			{Role: daemonv1.Role_ROLE_SYSTEM, Text: "rules"},
			{Role: daemonv1.Role_ROLE_ASSISTANT, ToolCall: &daemonv1.ToolCall{Id: "1", Name: "Bash", Input: `{"a":1}`}},
			{Role: daemonv1.Role_ROLE_TOOL, ToolResult: &daemonv1.ToolResult{CallId: "1", Output: "x", IsError: true}},
			{Role: daemonv1.Role_ROLE_OUTPUT, Raw: "odd line"},
			{Role: daemonv1.Role_ROLE_ASSISTANT, Text: strings.Repeat("large ", 1<<17)},
			{Role: daemonv1.Role_ROLE_ASSISTANT, ToolCall: &daemonv1.ToolCall{Id: "2", Name: "Edit", Input: `{}`}},
		}
		var records []*daemonv1.Record
		for i, m := range messages {
			records = append(records, message(int64(i+1), m))
		}
		if last, err := f.append("a1", records...); err != nil || last != 7 {
			t.Fatalf("append: %d, %v", last, err)
		}
		entries, err := f.conversation("a1", 0)
		if err != nil {
			t.Fatal(err)
		}
		var got []*daemonv1.Message
		for _, e := range entries {
			got = append(got, e.GetMessage())
		}
		if d := cmp.Diff(messages, got, protocmp.Transform()); d != "" {
			t.Errorf("conversation (-want +got):\n%s", d)
		}
		entries, err = f.conversation("a1", 6)
		Expect(err).NotTo(HaveOccurred())
		Expect(entries).To(ConsistOf(HaveField("Position", int64(7))), "after 6")
		begun = f.begin("a2")
		if d := cmp.Diff([]string{"2"}, begun.GetOpenToolCalls()); d != "" {
			t.Errorf("open calls (-want +got):\n%s", d)
		}
	})

	// A text longer than a mebibyte is sent with its beginning, and marked as cut.
	It("huge texts are sent cut", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t))
		f.begin("a1")
		huge := strings.Repeat("huge ", 1<<20)
		if _, err := f.append("a1", text(1, daemonv1.Role_ROLE_USER, huge)); err != nil {
			t.Fatal(err)
		}
		entries, err := f.conversation("a1", 0)
		if err != nil || len(entries) != 1 {
			t.Fatal(entries, err)
		}
		m := entries[0].GetMessage()
		if !strings.HasPrefix(huge, m.GetText()) {
			t.Errorf("%q… is not the beginning of the text", m.GetText()[:min(len(m.GetText()), 20)])
		}
		Expect(len(m.GetText())).To(And(BeNumerically(">=", 1000), BeNumerically("<=", 1<<20)), "bytes of the beginning")
		Expect(m.GetTextPieces().GetBytes()).To(BeEquivalentTo(len(huge)), "length of the whole text")
	})

	It("checkpoints are recorded and moves are made", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t))
		f.begin("a1")
		want := &daemonv1.CheckpointRecord{
			Number: 1, Trigger: "Manual", Time: timestamppb.New(time.Now().Truncate(time.Microsecond)), Message: "m", Commit: "c", Tree: "t",
			Parent: "p", Base: "b", StateCommit: "s", FilesChanged: 1, LinesAdded: 2, LinesRemoved: 3, GitHead: "h", GitBranch: "main",
			DirtyFiles: []string{"d"}, DirtyFileCount: 1, Files: 4, Bytes: 5, Skipped: []*daemonv1.SkippedFile{{Path: "x", Reason: "TooLarge", Bytes: 6}},
			SkippedCount: 1, Durable: true, RequestedByName: "n", RequestedByUid: "u", Attempt: 1,
		}
		_, err := f.append("a1", text(1, daemonv1.Role_ROLE_USER, "1"),
			&daemonv1.Record{Sequence: 2, Body: &daemonv1.Record_Usage{Usage: &daemonv1.Usage{InputTokens: 1}}},
			&daemonv1.Record{Sequence: 3, Body: &daemonv1.Record_Checkpoint{Checkpoint: want}},
			&daemonv1.Record{Sequence: 4, Body: &daemonv1.Record_Event{Event: &daemonv1.Event{Reason: "R", Details: map[string]string{"a": "b"}}}},
			text(5, daemonv1.Role_ROLE_USER, "2"))
		if err != nil {
			t.Fatal(err)
		}
		move := &daemonv1.MoveConversationRequest{OperationId: "op", Checkpoint: 1, Reason: "Rewind"}
		for range 2 {
			moved, err := f.client("a1").MoveConversation(t.Context(), connect.NewRequest(move))
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(&daemonv1.Position{Branch: "branch-2", Position: 1}, moved.Msg.GetPosition(), protocmp.Transform()); d != "" {
				t.Errorf("position (-want +got):\n%s", d)
			}
		}
		begun := f.begin("a2")
		want.Position = &daemonv1.Position{Branch: "main", Position: 1}
		if d := cmp.Diff(want, begun.GetLatestCheckpoint(), protocmp.Transform()); d != "" {
			t.Errorf("latest checkpoint (-want +got):\n%s", d)
		}
		if d := cmp.Diff([]string{"op"}, begun.GetCompletedOperations()); d != "" {
			t.Errorf("operations (-want +got):\n%s", d)
		}
	})

	// Pods outlive upgrades: older daemons send bare ids.
	It("operations of old daemons are keyed by kind", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t))
		f.begin("a1")
		for _, m := range []*daemonv1.MoveConversationRequest{
			{OperationId: "1", Reason: "resume", KeepPosition: true},
			{OperationId: "1", Reason: "rewind", KeepPosition: true},
			{OperationId: "1/done", Reason: "rewind complete", KeepPosition: true},
			{OperationId: "Rewind/1", Reason: "rewind", KeepPosition: true},
			{OperationId: "Resume/2", Reason: "resume", KeepPosition: true},
		} {
			if _, err := f.client("a1").MoveConversation(t.Context(), connect.NewRequest(m)); err != nil {
				t.Fatal(err)
			}
		}
		want := []string{"Resume/1", "Rewind/1", "Rewind/1/done", "Resume/2"}
		if d := cmp.Diff(want, f.begin("a2").GetCompletedOperations()); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})

	It("a fork begins with its source's conversation", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t))
		f.begin("a1")
		_, err := f.append("a1", text(1, daemonv1.Role_ROLE_USER, "1"),
			&daemonv1.Record{Sequence: 2, Body: &daemonv1.Record_Checkpoint{Checkpoint: &daemonv1.CheckpointRecord{Number: 1}}})
		if err != nil {
			t.Fatal(err)
		}
		source := &daemonv1.Source{TaskUid: "uid-of-a", Checkpoint: 1, IncludeConversation: true}
		if _, err := f.client("b1").Begin(t.Context(), connect.NewRequest(&daemonv1.BeginRequest{Source: source})); err != nil {
			t.Fatal(err)
		}
		entries, err := f.conversation("b1", 0)
		Expect(err).NotTo(HaveOccurred())
		Expect(entries).To(ConsistOf(HaveField("Message.Text", "1")))
	})

	It("each error is mapped to its code", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t))
		f.begin("a1")
		if _, err := f.append("a1", text(1, daemonv1.Role_ROLE_USER, "secret")); err != nil {
			t.Fatal(err)
		}
		begin := func(token string, source *daemonv1.Source) func() error {
			return func() error {
				_, err := f.client(token).Begin(t.Context(), connect.NewRequest(&daemonv1.BeginRequest{Source: source}))
				return err
			}
		}
		send := func(token string, records ...*daemonv1.Record) func() error {
			return func() error { _, err := f.append(token, records...); return err }
		}
		move := func(m *daemonv1.MoveConversationRequest) func() error {
			return func() error {
				_, err := f.client("a1").MoveConversation(t.Context(), connect.NewRequest(m))
				return err
			}
		}
		report := func(reason, message string) func() error {
			return func() error {
				_, err := f.client("a1").Report(t.Context(), connect.NewRequest(&daemonv1.ReportRequest{Problem: &daemonv1.Problem{Reason: reason, Message: message}}))
				return err
			}
		}
		read := func(token string) func() error {
			return func() error { _, err := f.conversation(token, 0); return err }
		}
		tests := []struct {
			name string
			call func() error
			code connect.Code
		}{
			{"no token", begin("", nil), connect.CodeUnauthenticated},
			{"bad token", begin("bad", nil), connect.CodeUnauthenticated},
			{"bad token on a stream", read("bad"), connect.CodeUnauthenticated},
			{"not a task's pod", begin("stranger", nil), connect.CodePermissionDenied},
			{"pod that is gone", begin("gone", nil), connect.CodeAborted},
			{"pod that is gone, on a stream", read("gone"), connect.CodeAborted},
			{"API server down", begin("outage", nil), connect.CodeUnavailable},
			{"not begun", send("b1", text(1, daemonv1.Role_ROLE_USER, "x")), connect.CodeNotFound},
			{"not begun, read", read("b1"), connect.CodeNotFound},
			{"UID of another namespace, read", read("spoofed"), connect.CodeNotFound},
			{"UID of another namespace, write", send("spoofed", text(2, daemonv1.Role_ROLE_USER, "x")), connect.CodeNotFound},
			{"gap", send("a1", text(5, daemonv1.Role_ROLE_USER, "x")), connect.CodeFailedPrecondition},
			{"no sequence", send("a1", text(0, daemonv1.Role_ROLE_USER, "x")), connect.CodeInvalidArgument},
			{"too large", send("a1", text(2, daemonv1.Role_ROLE_USER, strings.Repeat("x", 65<<20))), connect.CodeResourceExhausted},
			{"no source", begin("b1", &daemonv1.Source{}), connect.CodeInvalidArgument},
			{"unknown source", begin("b1", &daemonv1.Source{TaskUid: "x", Checkpoint: 1, IncludeConversation: true}), connect.CodeNotFound},
			{"no operation", move(&daemonv1.MoveConversationRequest{Checkpoint: 1}), connect.CodeInvalidArgument},
			{"odd checkpoint", move(&daemonv1.MoveConversationRequest{OperationId: "x", Checkpoint: -1}), connect.CodeInvalidArgument},
			{"unknown checkpoint", move(&daemonv1.MoveConversationRequest{OperationId: "x", Checkpoint: 9}), connect.CodeNotFound},
			{"problem", report("VolumeFull", "make room"), 0},
			{"problem without a reason", report("", "x"), connect.CodeInvalidArgument},
			{"problem with an invalid reason", report("Volume full", "x"), connect.CodeInvalidArgument},
			{"problem of too many words", report("VolumeFull", strings.Repeat("x", 1025)), connect.CodeInvalidArgument},
			{"problem with NUL", report("VolumeFull", "x\x00"), connect.CodeInvalidArgument},
			{"newer attempt", begin("a2", nil), 0},
			{"fenced problem", report("VolumeFull", "make room"), connect.CodeAborted},
			{"fenced", send("a1", text(2, daemonv1.Role_ROLE_USER, "x")), connect.CodeAborted},
			{"fenced begin", begin("a1", nil), connect.CodeAborted},
			{"fenced move", move(&daemonv1.MoveConversationRequest{OperationId: "x", Checkpoint: 1}), connect.CodeAborted},
			{"fenced read", read("a1"), connect.CodeAborted},
		}
		for _, tt := range tests {
			err := tt.call()
			if tt.code == 0 && err == nil {
				continue
			}
			if connect.CodeOf(err) != tt.code {
				t.Errorf("%s: %v, want %s", tt.name, err, tt.code)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("%s: the error reveals internals: %v", tt.name, err)
			}
		}
	})

	It("a gap error says where to resend from", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t))
		f.begin("a1")
		if _, err := f.append("a1", text(1, daemonv1.Role_ROLE_USER, "1")); err != nil {
			t.Fatal(err)
		}
		_, err := f.append("a1", text(5, daemonv1.Role_ROLE_USER, "5"))
		var failure *connect.Error
		if !errors.As(err, &failure) || len(failure.Details()) != 1 {
			t.Fatalf("append after a gap: %v, want an error with one detail", err)
		}
		detail, err := failure.Details()[0].Value()
		if err != nil {
			t.Fatal(err)
		}
		if got := detail.(*daemonv1.AppendResponse).GetLastSequence(); got != 1 {
			t.Errorf("last sequence %d", got)
		}
		if !strings.Contains(failure.Message(), "the last stored one is 1") {
			t.Errorf("message: %s", failure.Message())
		}
	})

	It("a store that is down is reported", func() {
		t := GinkgoTB()
		f := serve(t, "postgres://u:secret@127.0.0.1:1/none")
		start := time.Now()
		_, err := f.append("a1", text(1, daemonv1.Role_ROLE_USER, "x"))
		if connect.CodeOf(err) != connect.CodeUnavailable || strings.Contains(err.Error(), "127.0.0.1") {
			t.Errorf("append with the store down: %v, want Unavailable without its address", err)
		}
		if took := time.Since(start); took > 5*time.Second {
			t.Errorf("took %s", took)
		}
	})

	It("a requested checkpoint is taken", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t), func(o *gateway.Options) { o.Heartbeat = 10 * time.Millisecond })
		ctx, cancel := context.WithCancel(t.Context())
		f.board.Set(request("a", "early"))
		f.board.Set(request("b", "of-another-task"))
		commands, ended := f.commands(ctx, "a1")
		expect(t, commands, "early")
		f.board.Set(request("a", "late"))
		expect(t, commands, "late")
		cancel()
		<-ended

		// After a reconnect, requests that are not completed are sent again.
		done := request("a", "late")
		done.Status.Conditions = []metav1.Condition{{Type: clewv1alpha1.CheckpointReady, Status: metav1.ConditionTrue}}
		f.board.Set(done)
		commands, ended = f.commands(t.Context(), "a1")
		expect(t, commands, "early")
		f.gateway.Close()
		select {
		case err := <-ended:
			if connect.CodeOf(err) != connect.CodeUnavailable {
				t.Errorf("ended with %v", err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("closing the gateway did not end the stream")
		}
		if c, ok := <-commands; ok {
			t.Errorf("received %v", c)
		}
	})

	// The volume was lost before the first checkpoint was durable: the daemon starts over
	// and sends the prompt again.
	It("a task starts over", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t))
		f.begin("a1")
		if _, err := f.append("a1", text(1, daemonv1.Role_ROLE_USER, "prompt"), text(2, daemonv1.Role_ROLE_ASSISTANT, "lost")); err != nil {
			t.Fatal(err)
		}
		f.begin("a2")
		moved, err := f.client("a2").MoveConversation(t.Context(), connect.NewRequest(&daemonv1.MoveConversationRequest{OperationId: "restore/2", Reason: "lost"}))
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(&daemonv1.Position{Branch: "branch-2"}, moved.Msg.GetPosition(), protocmp.Transform()); d != "" {
			t.Errorf("position (-want +got):\n%s", d)
		}
		if _, err := f.append("a2", text(3, daemonv1.Role_ROLE_USER, "prompt")); err != nil {
			t.Fatal(err)
		}
		entries, err := f.conversation("a2", 0)
		Expect(err).NotTo(HaveOccurred())
		Expect(entries).To(ConsistOf(HaveField("Message.Text", "prompt")))
	})

	// Two servers, one database: a daemon whose pod was replaced is stopped by the server
	// it is connected to, wherever the new attempt has begun.
	Describe("a newer attempt ends the commands of the previous one", func() {
		often := func(o *gateway.Options) { o.Heartbeat = 10 * time.Millisecond }
		for name, tt := range cases.Sorted(map[string]struct {
			change []func(*gateway.Options)
			listen bool
			// same: the newer attempt begins at the server of the stream.
			same bool
		}{
			"at the same server":       {same: true},
			"at another, notified":     {listen: true},
			"at another, by heartbeat": {change: []func(*gateway.Options){often}},
		}) {
			It(name, func() {
				t := GinkgoTB()
				dsn := pg.Database(t)
				f := serve(t, dsn, tt.change...)
				other := f
				if !tt.same {
					other = serve(t, dsn)
				}
				if tt.listen {
					f.listen(dsn)
				}
				f.begin("a1")
				_, ended := f.commands(t.Context(), "a1")
				other.begin("a2")
				expectAborted(t, ended)

				// Nor can it reconnect; the newer attempt is not affected.
				_, again := f.commands(t.Context(), "a1")
				expectAborted(t, again)
				commands, ended := f.commands(t.Context(), "a2")
				f.board.Set(request("a", "asked"))
				expect(t, commands, "asked")
				select {
				case err := <-ended:
					t.Errorf("the newer attempt's stream ended with %v", err)
				default:
				}
			})
		}
	})

	// Commands do not come from the store: its outage ends no stream.
	It("commands outlive the store", func() {
		t := GinkgoTB()
		f := serve(t, "postgres://u:secret@127.0.0.1:1/none", func(o *gateway.Options) { o.Heartbeat = 10 * time.Millisecond })
		commands, ended := f.commands(t.Context(), "a1")
		f.gateway.HandleNotification(history.Notification{})
		f.board.Set(request("a", "asked"))
		expect(t, commands, "asked")
		select {
		case err := <-ended:
			t.Errorf("ended with %v", err)
		default:
		}
	})

	It("command streams end", func() {
		t := GinkgoTB()
		f := serve(t, pg.Database(t), func(o *gateway.Options) { o.StreamLifetime = 50 * time.Millisecond })
		_, ended := f.commands(t.Context(), "a1")
		if err := <-ended; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
})

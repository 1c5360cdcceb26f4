package gateway_test

import (
	"errors"
	"strings"
	"time"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/server/gateway"
)

var _ = Describe("The gateway", func() {
	// A pod whose Task is gone may still be cached; it cannot begin again.
	It("nothing begins without a task", func() {
		f := serve(func(o *gateway.Options) { o.Tasks = gone{} })
		_, err := f.tryBegin("a1", nil)
		Expect(err).To(beRefused(connect.CodePermissionDenied))
	})

	It("a conversation is returned as it was recorded", func() {
		f := serve()
		By("beginning")
		begun := f.begin("a1")
		Expect(begun.GetAttempt()).To(BeEquivalentTo(1))
		Expect(begun.GetLastSequence()).To(BeZero(), "a new task has no records")
		Expect(begun.LatestCheckpoint).To(BeNil(), "a new task has no checkpoint")

		By("recording")
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
		Expect(f.append("a1", records...)).To(BeEquivalentTo(7), "the sequence of the last record")

		By("reading")
		var got []*daemonv1.Message
		for _, e := range f.conversation("a1", 0) {
			got = append(got, e.GetMessage())
		}
		Expect(got).To(BeComparableTo(messages, protocmp.Transform()))
		Expect(f.conversation("a1", 6)).To(ConsistOf(HaveField("Position", int64(7))), "after 6")

		By("beginning the next attempt")
		Expect(f.begin("a2").GetOpenToolCalls()).To(Equal([]string{"2"}), "calls without a result")
	})

	// A text longer than a mebibyte is sent with its beginning, and marked as cut.
	It("huge texts are sent cut", func() {
		f := serve()
		f.begin("a1")
		huge := strings.Repeat("huge ", 1<<20)
		f.append("a1", text(1, daemonv1.Role_ROLE_USER, huge))
		entries := f.conversation("a1", 0)
		Expect(len(entries)).To(Equal(1), "messages")
		m := entries[0].GetMessage()
		Expect(strings.HasPrefix(huge, m.GetText())).To(BeTrue(), "%q… is not the beginning of the text", m.GetText()[:min(len(m.GetText()), 20)])
		Expect(len(m.GetText())).To(And(BeNumerically(">=", 1000), BeNumerically("<=", 1<<20)), "bytes of the beginning")
		Expect(m.GetTextPieces().GetBytes()).To(BeEquivalentTo(len(huge)), "length of the whole text")
	})

	It("checkpoints are recorded and moves are made", func() {
		f := serve()
		f.begin("a1")
		want := &daemonv1.CheckpointRecord{
			Number: 1, Trigger: "Manual", Time: timestamppb.New(time.Now().Truncate(time.Microsecond)), Message: "m", Commit: "c", Tree: "t",
			Parent: "p", Base: "b", StateCommit: "s", FilesChanged: 1, LinesAdded: 2, LinesRemoved: 3, GitHead: "h", GitBranch: "main",
			DirtyFiles: []string{"d"}, DirtyFileCount: 1, Files: 4, Bytes: 5, Skipped: []*daemonv1.SkippedFile{{Path: "x", Reason: "TooLarge", Bytes: 6}},
			SkippedCount: 1, Durable: true, RequestedByName: "n", RequestedByUid: "u", Attempt: 1,
		}
		f.append("a1", text(1, daemonv1.Role_ROLE_USER, "1"),
			&daemonv1.Record{Sequence: 2, Body: &daemonv1.Record_Usage{Usage: &daemonv1.Usage{InputTokens: 1}}},
			&daemonv1.Record{Sequence: 3, Body: &daemonv1.Record_Checkpoint{Checkpoint: want}},
			&daemonv1.Record{Sequence: 4, Body: &daemonv1.Record_Event{Event: &daemonv1.Event{Reason: "R", Details: map[string]string{"a": "b"}}}},
			text(5, daemonv1.Role_ROLE_USER, "2"))

		position := &daemonv1.Position{Branch: "branch-2", Position: 1}
		for _, which := range []string{"a move", "the same move again"} {
			By(which)
			moved := f.move("a1", &daemonv1.MoveConversationRequest{OperationId: "op", Checkpoint: 1, Reason: "Rewind"})
			Expect(moved).To(BeComparableTo(position, protocmp.Transform()), which)
		}

		By("beginning the next attempt")
		begun := f.begin("a2")
		want.Position = &daemonv1.Position{Branch: "main", Position: 1}
		Expect(begun.GetLatestCheckpoint()).To(BeComparableTo(want, protocmp.Transform()))
		Expect(begun.GetCompletedOperations()).To(Equal([]string{"op"}))
	})

	// Pods outlive upgrades: older daemons send bare ids.
	It("operations of old daemons are keyed by kind", func() {
		f := serve()
		f.begin("a1")
		for _, m := range []*daemonv1.MoveConversationRequest{
			{OperationId: "1", Reason: "resume", KeepPosition: true},
			{OperationId: "1", Reason: "rewind", KeepPosition: true},
			{OperationId: "1/done", Reason: "rewind complete", KeepPosition: true},
			{OperationId: "Rewind/1", Reason: "rewind", KeepPosition: true},
			{OperationId: "Resume/2", Reason: "resume", KeepPosition: true},
		} {
			f.move("a1", m)
		}
		Expect(f.begin("a2").GetCompletedOperations()).To(Equal([]string{"Resume/1", "Rewind/1", "Rewind/1/done", "Resume/2"}))
	})

	It("a fork begins with its source's conversation", func() {
		f := serve()
		f.begin("a1")
		f.append("a1", text(1, daemonv1.Role_ROLE_USER, "1"),
			&daemonv1.Record{Sequence: 2, Body: &daemonv1.Record_Checkpoint{Checkpoint: &daemonv1.CheckpointRecord{Number: 1}}})
		f.beginFrom("b1", &daemonv1.Source{TaskUid: "uid-of-a", Checkpoint: 1, IncludeConversation: true})
		Expect(f.texts("b1")).To(Equal([]string{"1"}))
	})

	// The volume was lost before the first checkpoint was durable: the daemon starts over
	// and sends the prompt again.
	It("a task starts over", func() {
		f := serve()
		f.begin("a1")
		f.append("a1", text(1, daemonv1.Role_ROLE_USER, "prompt"), text(2, daemonv1.Role_ROLE_ASSISTANT, "lost"))
		f.begin("a2")
		moved := f.move("a2", &daemonv1.MoveConversationRequest{OperationId: "restore/2", Reason: "lost"})
		Expect(moved).To(BeComparableTo(&daemonv1.Position{Branch: "branch-2"}, protocmp.Transform()))
		f.append("a2", text(3, daemonv1.Role_ROLE_USER, "prompt"))
		Expect(f.texts("a2")).To(Equal([]string{"prompt"}))
	})
})

var _ = Describe("Refusals of the gateway", func() {
	It("each error is mapped to its code", func() {
		f := serve()
		f.begin("a1")
		f.append("a1", text(1, daemonv1.Role_ROLE_USER, "secret"))
		begin := func(token string, source *daemonv1.Source) func() error {
			return func() error { _, err := f.tryBegin(token, source); return err }
		}
		send := func(token string, records ...*daemonv1.Record) func() error {
			return func() error { _, err := f.tryAppend(token, records...); return err }
		}
		move := func(m *daemonv1.MoveConversationRequest) func() error {
			return func() error { _, err := f.tryMove("a1", m); return err }
		}
		report := func(reason, message string) func() error {
			return func() error {
				_, err := f.client("a1").Report(f.ctx, connect.NewRequest(&daemonv1.ReportRequest{Problem: &daemonv1.Problem{Reason: reason, Message: message}}))
				return err
			}
		}
		read := func(token string) func() error {
			return func() error { _, err := f.tryConversation(token, 0); return err }
		}
		for _, tt := range []struct {
			name string
			call func() error
			code connect.Code // 0: it is not refused
		}{
			{"no token", begin("", nil), connect.CodeUnauthenticated},
			{"bad token", begin("bad", nil), connect.CodeUnauthenticated},
			{"bad token on a stream", read("bad"), connect.CodeUnauthenticated},
			{"not a task's pod", begin("stranger", nil), connect.CodePermissionDenied},
			{"a pod that publishes", begin("publisher", nil), connect.CodePermissionDenied},
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
		} {
			By(tt.name)
			err := tt.call()
			if tt.code == 0 {
				Expect(err).NotTo(HaveOccurred(), tt.name)
				continue
			}
			Expect(err).To(beRefused(tt.code), tt.name)
			Expect(err).NotTo(MatchError(ContainSubstring("secret")), "%s: the error reveals internals", tt.name)
		}
	})

	It("a gap error says where to resend from", func() {
		f := serve()
		f.begin("a1")
		f.append("a1", text(1, daemonv1.Role_ROLE_USER, "1"))
		_, err := f.tryAppend("a1", text(5, daemonv1.Role_ROLE_USER, "5"))
		var failure *connect.Error
		Expect(errors.As(err, &failure)).To(BeTrue(), "append after a gap: %v", err)
		Expect(failure.Message()).To(ContainSubstring("the last stored one is 1"))
		Expect(failure.Details()).To(HaveLen(1))
		detail, err := failure.Details()[0].Value()
		Expect(err).NotTo(HaveOccurred())
		Expect(detail).To(BeComparableTo(&daemonv1.AppendResponse{LastSequence: 1}, protocmp.Transform()))
	})

	It("a store that is down is reported", func() {
		f := serveAt(unreachable)
		start := time.Now()
		_, err := f.tryAppend("a1", text(1, daemonv1.Role_ROLE_USER, "x"))
		Expect(err).To(beRefused(connect.CodeUnavailable))
		Expect(err).NotTo(MatchError(ContainSubstring("127.0.0.1")), "the store's address is not revealed")
		Expect(time.Since(start)).To(BeNumerically("<=", 5*time.Second))
	})
})

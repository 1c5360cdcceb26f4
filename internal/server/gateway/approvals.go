package gateway

import (
	"connectrpc.com/connect"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// Answer is the answer to a tool call that waits.
type Answer struct {
	RequestID string
	Approved  bool
	// By is who answered, and Reason why.
	By, Reason string
}

// Approvals provides the answers to tool calls that wait.
type Approvals interface {
	// Answers returns those of a task that its daemon may not have yet.
	Answers(taskUID string) []Answer
	// Changes returns a channel that receives when the result of Answers may have changed since the
	// last receive, until leave is called.
	Changes(taskUID string) (changed <-chan struct{}, leave func())
}

// noApprovals is used if nobody answers.
type noApprovals struct{}

// Answers implements Approvals.
func (noApprovals) Answers(string) []Answer { return nil }

// Changes implements Approvals.
func (noApprovals) Changes(string) (changed <-chan struct{}, leave func()) { return nil, func() {} }

// sendAnswers sends the answers that a stream has not sent yet, and returns those that it has sent. A
// daemon ignores what it has.
func sendAnswers(stream *connect.ServerStream[daemonv1.Command], answers []Answer, sent map[string]bool) (map[string]bool, error) {
	now := make(map[string]bool, len(answers))
	for _, a := range answers {
		if now[a.RequestID] = true; sent[a.RequestID] {
			continue
		}
		answer := &daemonv1.AnswerRequest{Id: a.RequestID, Approved: a.Approved, By: a.By, Reason: a.Reason}
		if err := stream.Send(&daemonv1.Command{Command: &daemonv1.Command_AnswerRequest{AnswerRequest: answer}}); err != nil {
			return now, err
		}
	}
	return now, nil
}

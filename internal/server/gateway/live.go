package gateway

import (
	"context"
	"regexp"

	"connectrpc.com/connect"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/conversation"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
)

const (
	// maxLiveProblem bounds the problem in an answer, in bytes.
	maxLiveProblem = 1024
	// maxLiveRest bounds after how many seconds a request may be repeated.
	maxLiveRest = 600
)

// commitID matches the full id of a commit.
var commitID = regexp.MustCompile(`^[0-9a-f]{40}$`)

// ReportLive implements the RPC.
func (g *Gateway) ReportLive(ctx context.Context, req *connect.Request[daemonv1.ReportLiveRequest]) (*connect.Response[daemonv1.ReportLiveResponse], error) {
	m := req.Msg
	if m.GetCommit() != "" && !commitID.MatchString(m.GetCommit()) {
		return nil, invalid("the commit is not an id of 40 hexadecimal digits")
	}
	if g.live != nil && m.GetId() != "" {
		answer := history.LiveMessage{TaskUID: identityOf(ctx).TaskUID, ID: m.GetId(), Commit: m.GetCommit(),
			Problem:           clip.Bytes(conversation.CleanText(m.GetProblem()), maxLiveProblem),
			RetryAfterSeconds: min(max(m.GetRetryAfterSeconds(), 0), maxLiveRest)}
		if err := g.live.Answer(ctx, answer); err != nil {
			return nil, g.failure(ctx, err)
		}
	}
	return connect.NewResponse(&daemonv1.ReportLiveResponse{}), nil
}

// liveRequests is Live.Requests; a channel that never receives without one.
func (g *Gateway) liveRequests(taskUID string) (ids <-chan string, leave func()) {
	if g.live == nil {
		return nil, func() {}
	}
	return g.live.Requests(taskUID)
}

func publishLive(id string) *daemonv1.Command {
	return &daemonv1.Command{Command: &daemonv1.Command_PublishLive{PublishLive: &daemonv1.PublishLive{Id: id}}}
}

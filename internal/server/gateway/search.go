package gateway

import (
	"context"
	"errors"
	"strings"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
)

const (
	// maxSearchBytes bounds the words of a search.
	maxSearchBytes = 1024
	// maxHits is how many messages a search returns at most, and defaultHits without a limit.
	maxHits     = 50
	defaultHits = 10
	// searchCost is what a search costs the task's rate, in bytes of records: at the default
	// rate, a task may search four times a second.
	searchCost = 1 << 20
)

// errCommonWords is returned for a search that took too long.
var errCommonWords = errors.New("the search took longer than one may: search for rarer words")

// SearchHistory implements the RPC. Whoever searches is a model that has the same conversation:
// it finds its own messages only, and none that a rewind has taken back.
func (g *Gateway) SearchHistory(ctx context.Context, req *connect.Request[daemonv1.SearchHistoryRequest]) (*connect.Response[daemonv1.SearchHistoryResponse], error) {
	id := identityOf(ctx)
	text := req.Msg.GetQuery()
	if strings.TrimSpace(text) == "" || len(text) > maxSearchBytes {
		return nil, invalid("the query must contain the words to search for, at most %d bytes", maxSearchBytes)
	}
	limit := int(req.Msg.GetLimit())
	if limit <= 0 {
		limit = defaultHits
	}
	g.shares.spend(id, searchCost, 0)
	arrived, err := arrivalOf(ctx)
	if err != nil {
		return nil, err
	}
	working, err := arrived.work(ctx)
	if err != nil {
		return nil, err
	}
	newest, err := g.store.Attempt(working, id.TaskUID)
	if err == nil && newest > id.Attempt {
		err = fenced(id, newest)
	}
	if err != nil {
		return nil, g.failure(working, err)
	}
	searching, done, err := arrived.search(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	page, err := g.store.Search(searching, history.SearchQuery{Namespace: id.Namespace, UID: id.TaskUID, Standing: true, Text: text, Limit: min(limit, maxHits)})
	if errors.Is(err, history.ErrSlow) {
		return nil, connect.NewError(connect.CodeResourceExhausted, errCommonWords)
	}
	if err != nil {
		return nil, g.failure(searching, err)
	}
	response := &daemonv1.SearchHistoryResponse{More: page.More}
	for _, hit := range page.Hits {
		response.Hits = append(response.Hits, &daemonv1.SearchHit{
			Position: hit.Position, Time: timestamppb.New(hit.Time), Role: hit.Role, Tool: hit.Tool, Snippet: hit.Snippet,
		})
	}
	return connect.NewResponse(response), nil
}

package gitstoreapi

import (
	"context"
	"net/http"
	"time"
)

// Checkpoints are those of a task that the gitstore has.
type Checkpoints struct {
	// Numbers of the checkpoints of which it has both the code's ref and the agent state's. Nothing is
	// said about their objects: see Verification.
	Numbers []int64 `json:"numbers,omitempty"`
}

// listingTime bounds one listing, which waits for a slot and reads no object.
const listingTime = time.Minute

// Checkpoints lists the checkpoints of a task that the gitstore has, by their numbers. A refusal of the
// gitstore is returned as a *Refusal: NotFound by one of an earlier version, which has no such list.
func (c Client) Checkpoints(ctx context.Context, namespace, uid string) ([]int64, error) {
	var listed Checkpoints
	ctx, cancel := context.WithTimeout(ctx, listingTime)
	defer cancel()
	err := c.do(ctx, http.MethodGet, taskPath(namespace, uid)+"/checkpoints", nil, maxDiffBytes, &listed)
	return listed.Numbers, err
}

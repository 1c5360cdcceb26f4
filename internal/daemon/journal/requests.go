package journal

import (
	"encoding/json"
	"slices"
)

// maxAnswered bounds the requests of an attempt that wait no longer and are remembered, and the
// approvals whose calls were made.
const maxAnswered = 64

// Requests are the tool calls of an attempt about which somebody is, or was, asked.
type Requests struct {
	Attempt int64  `json:"attempt"`
	PodUID  string `json:"podUID,omitempty"`
	// Made counts them, so that no two have the same id.
	Made int64 `json:"made"`
	// List has those that wait, and the newest others, oldest first.
	List []Request `json:"list,omitempty"`
	// Passed are the ids of requests of earlier attempts that were approved, and whose call was made
	// again.
	Passed []string `json:"passed,omitempty"`
}

// Request is a tool call about which somebody is asked.
type Request struct {
	// ID is the request's own.
	ID string `json:"id"`
	// Key identifies the run of the hook that waits; it may be empty.
	Key string `json:"key,omitempty"`
	// Tool and InputDigest say which call it is.
	Tool        string `json:"tool,omitempty"`
	InputDigest string `json:"inputDigest,omitempty"`
	// Record is what is sent of it, a daemonv1.ToolRequest as protobuf JSON.
	Record json.RawMessage `json:"record"`
	// StopsAgent is set if the agent was stopped for it.
	StopsAgent bool `json:"stopsAgent,omitempty"`
	// Ended is set once it waits no longer.
	Ended bool `json:"ended,omitempty"`
	// Answer is nil while it has none.
	Answer *RequestAnswer `json:"answer,omitempty"`
	// Used is set once the call was let pass: the approval is good for no other.
	Used bool `json:"used,omitempty"`
}

// RequestAnswer is the answer to a request.
type RequestAnswer struct {
	Approved bool   `json:"approved,omitempty"`
	By       string `json:"by,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// Waits reports whether the call still waits for an answer.
func (r Request) Waits() bool { return !r.Ended && r.Answer == nil }

// IsOf reports whether a run of a hook asks about this call, which has not been let pass yet: with the same
// key, any process of the agent can ask about any other call, and about the same one again.
func (r Request) IsOf(key, tool, inputDigest string) bool {
	return key != "" && r.Key == key && r.Tool == tool && r.InputDigest == inputDigest && !r.Used
}

// RequestsOf returns the requests of a pod, none if those in the journal are another pod's.
func (s *State) RequestsOf(attempt int64, podUID string) Requests {
	if r := s.Requests; r != nil && r.Attempt == attempt && r.PodUID == podUID {
		return *r
	}
	return Requests{Attempt: attempt, PodUID: podUID}
}

// Add adds a request.
func (r *Requests) Add(request Request) {
	r.Made++
	r.List = append(r.List, request)
	for r.over() > maxAnswered {
		i := slices.IndexFunc(r.List, func(q Request) bool { return !q.Waits() && !q.StopsAgent })
		if i < 0 {
			return
		}
		r.List = slices.Delete(r.List, i, i+1)
	}
}

// over counts those that wait no longer.
func (r *Requests) over() (n int) {
	for _, q := range r.List {
		if !q.Waits() {
			n++
		}
	}
	return n
}

// Pass notes that the call of an approved request was made again.
func (r *Requests) Pass(id string) { r.Passed = lastOf(append(r.Passed, id), maxAnswered) }

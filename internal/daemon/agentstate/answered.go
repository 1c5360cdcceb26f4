package agentstate

import (
	"maps"
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/toolcall"
)

// maxEvent bounds the message of an event, in bytes.
const maxEvent = 1024

// Answered is a call of a supervisor's tool that has taken effect, while it is not known whether its
// answer has reached the agent.
type Answered struct {
	// ID is what the server calls the call.
	ID string `json:"id"`
	// Message says for the timeline what was called and done, and Details the same for programs.
	Message string            `json:"message"`
	Details map[string]string `json:"details,omitempty"`
}

// Marker ends the answer's text, so that the answer is known again wherever the agent shows it.
func (a Answered) Marker() string { return toolcall.Marker(a.ID) }

// Event returns the event about the call, which says whether the answer has reached the agent.
func (a Answered) Event(reached bool) *daemonv1.Record {
	message, details := a.Message, maps.Clone(a.Details)
	if details == nil {
		details = map[string]string{}
	}
	details[history.ToolCallAbout] = a.ID
	if reached {
		details[history.ToolCallDelivered] = a.ID
	} else {
		message += " (the agent has not got this answer)"
	}
	return &daemonv1.Record{Body: &daemonv1.Record_Event{Event: &daemonv1.Event{
		Reason: v1alpha1.EventToolCalled, Message: clip.Bytes(message, maxEvent), Details: details}}}
}

// DeliveredBy returns the id of the call whose answer has reached the agent, by an event of Answered;
// "" for any other.
func DeliveredBy(e *daemonv1.Event) string {
	if e.GetReason() != v1alpha1.EventToolCalled {
		return ""
	}
	return e.GetDetails()[history.ToolCallDelivered]
}

// Noted updates the state with an event that is being recorded: the call that it is about needs no
// other.
func (s *State) Noted(e *daemonv1.Event) {
	if e.GetReason() == v1alpha1.EventToolCalled && e.GetDetails()[history.ToolCallAbout] != "" {
		s.Answered = s.without(e.GetDetails()[history.ToolCallAbout])
	}
}

// Add adds a call that was answered, in place of an earlier answer to it.
func (s *State) Add(a Answered) { s.Answered = append(s.without(a.ID), a) }

// without returns a copy of the answered calls without one.
func (s *State) without(id string) []Answered {
	return slices.DeleteFunc(slices.Clone(s.Answered), func(a Answered) bool { return a.ID == id })
}

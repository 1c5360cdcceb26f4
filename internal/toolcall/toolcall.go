// Package toolcall describes the calls of a supervisor's tools, by which its agent makes, watches and
// steers the tasks that are its children.
//
// A call that changes something goes from the daemon to the server, which stores it, and is carried
// out by the manager; one that only reads is answered by the server. The inputs are what an agent may
// say, and nothing else: no template, account, Secret, branch or push option is among them.
package toolcall

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"

	"github.com/clew-dev/clew/api/v1alpha1"
)

const (
	// MaxArguments bounds the arguments of a call, in bytes of JSON: a prompt of the longest kind, and
	// some more.
	MaxArguments = 160 << 10
	// MaxText and MaxData bound an answer, in bytes.
	MaxText, MaxData = 48 << 10, 96 << 10
	// MaxVariants is how many tasks one fork makes.
	MaxVariants = 16
	// MaxNames bounds the tasks that one call names.
	MaxNames = 100
)

// Self is the name by which a supervisor's inputs mean its own task.
const Self = "self"

// callID is the form of a call's id: part of the ids of operations.
var callID = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`)

// CheckID returns an error in words for an agent, unless an id of a call has the right form.
func CheckID(id string) error {
	if id != "" && !callID.MatchString(id) {
		return fmt.Errorf("call_id must be at most 63 letters, digits, '-', '_' and '.', and begin and end with a letter or digit")
	}
	return nil
}

// CreateInput is the input of task_create.
type CreateInput struct {
	Name      string   `json:"name" jsonschema:"a short name for the task, unique among your tasks: lower-case letters, digits and dashes, such as parser"`
	Prompt    string   `json:"prompt" jsonschema:"what the task's agent shall do, with all that it needs to know: it sees neither your conversation nor your files, unless you set start_from"`
	DependsOn []string `json:"depends_on,omitempty" jsonschema:"tasks of yours that must have completed before this one starts"`
	StartFrom string   `json:"start_from,omitempty" jsonschema:"start with the files of this task of yours, at its latest checkpoint; self for your own files as they are at your latest checkpoint. The repository as it was cloned if left out"`
}

// ListInput is the input of task_list.
type ListInput struct {
	Phase string `json:"phase,omitempty" jsonschema:"list only the tasks that were made in this phase"`
}

// WaitInput is the input of task_wait.
type WaitInput struct {
	Tasks []string `json:"tasks,omitempty" jsonschema:"the tasks to wait for: all of yours that have not finished if left out"`
	Any   bool     `json:"any,omitempty" jsonschema:"return when one of them has stopped, instead of all"`
}

// HistoryInput is the input of task_history.
type HistoryInput struct {
	Task  string `json:"task" jsonschema:"the task"`
	Query string `json:"query,omitempty" jsonschema:"words to find; the newest messages are returned if left out"`
	Limit int    `json:"limit,omitempty" jsonschema:"how many messages to return, 10 if left out, 50 at most"`
}

// DiffInput is the input of task_diff.
type DiffInput struct {
	Task string `json:"task" jsonschema:"the task"`
	From *int64 `json:"from,omitempty" jsonschema:"the number of the checkpoint to compare from: the files that the task started from if left out"`
	To   *int64 `json:"to,omitempty" jsonschema:"the number of the checkpoint to compare to: the latest one if left out"`
	Path string `json:"path,omitempty" jsonschema:"compare only this file, or this folder with everything below it"`
}

// ResumeInput is the input of task_resume.
type ResumeInput struct {
	Task   string `json:"task" jsonschema:"the task to go on with, which has stopped"`
	Prompt string `json:"prompt,omitempty" jsonschema:"what its agent shall do next. A task that has completed needs one"`
	CallID string `json:"call_id,omitempty" jsonschema:"leave it out, unless you repeat a call and want it to take effect once: the same id always gets the same answer"`
}

// RewindInput is the input of task_rewind.
type RewindInput struct {
	Task       string `json:"task" jsonschema:"the task to take back"`
	Checkpoint int64  `json:"checkpoint" jsonschema:"the number of the checkpoint that it goes back to, with its files and its conversation"`
	Prompt     string `json:"prompt,omitempty" jsonschema:"what its agent shall do then, instead of what went wrong; it goes on as it was told before if left out"`
	CallID     string `json:"call_id,omitempty" jsonschema:"leave it out, unless you repeat a call and want it to take effect once: the same id always gets the same answer"`
}

// ForkVariant is one of the tasks that a fork makes.
type ForkVariant struct {
	Name   string `json:"name" jsonschema:"a short name for the new task, unique among your tasks"`
	Prompt string `json:"prompt,omitempty" jsonschema:"what its agent shall do from there on; the prompt of the forked task if left out"`
}

// ForkInput is the input of task_fork.
type ForkInput struct {
	Task       string        `json:"task" jsonschema:"the task to fork"`
	Name       string        `json:"name" jsonschema:"a short name for the fork, unique among your forks"`
	Checkpoint int64         `json:"checkpoint,omitempty" jsonschema:"the number of the checkpoint from which the new tasks go on: the latest one if left out"`
	Variants   []ForkVariant `json:"variants" jsonschema:"the new tasks, 16 at most"`
}

// StopInput is the input of task_stop.
type StopInput struct {
	Task   string `json:"task" jsonschema:"the task to stop. Its work is kept, and task_resume goes on with it"`
	CallID string `json:"call_id,omitempty" jsonschema:"leave it out, unless you repeat a call and want it to take effect once: the same id always gets the same answer"`
}

// PhaseInput is the input of phase_set.
type PhaseInput struct {
	Phase  string `json:"phase" jsonschema:"the phase of the contract to go to"`
	CallID string `json:"call_id,omitempty" jsonschema:"leave it out, unless you repeat a call and want it to take effect once: the same id always gets the same answer"`
}

// PublishInput is the input of publish.
type PublishInput struct {
	Task   string `json:"task,omitempty" jsonschema:"the task whose work is published: your own if left out. Where it is pushed to is set by whoever made your task"`
	CallID string `json:"call_id,omitempty" jsonschema:"leave it out, unless you repeat a call and want it to take effect once: the same id always gets the same answer"`
}

// Changing are the tools whose calls are stored and carried out by the manager.
func Changing() []v1alpha1.AgentTool {
	return []v1alpha1.AgentTool{
		v1alpha1.ToolTaskCreate, v1alpha1.ToolTaskResume, v1alpha1.ToolTaskRewind, v1alpha1.ToolTaskFork, v1alpha1.ToolTaskStop,
		v1alpha1.ToolPhaseSet, v1alpha1.ToolPublish,
	}
}

// Changes reports whether calls of a tool change something.
func Changes(tool v1alpha1.AgentTool) bool { return slices.Contains(Changing(), tool) }

// Canonical returns the arguments of a call as JSON that is the same for the same arguments, whatever
// the order of their fields and the space between them.
func Canonical(arguments []byte) ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(arguments))
	decoder.UseNumber()
	var v any
	if err := decoder.Decode(&v); err != nil {
		return nil, fmt.Errorf("the arguments are not JSON: %w", err)
	}
	return json.Marshal(v)
}

// Digest identifies what a call wishes: its tool and its canonical arguments.
func Digest(tool v1alpha1.AgentTool, canonical []byte) string {
	sum := sha256.Sum256(append([]byte(tool+"\n"), canonical...))
	return hex.EncodeToString(sum[:])
}

// Answer is the answer to a call.
type Answer struct {
	// Refused is true if nothing was done.
	Refused bool
	// Text is for the model: what was done, or why not and what to do instead.
	Text string
	// Data is the same for programs, as JSON; nil for none.
	Data json.RawMessage
}

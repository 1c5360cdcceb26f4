// Package launchplan passes the launch plan, which says how the agent is started, from
// prepare to the shim: one small file in the run folder, which the agent cannot write to.
//
// The file is the last thing that prepare writes, atomically: if it exists, everything it
// names exists.
package launchplan

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/durable"
)

// Paths within the run folder.
const (
	// File holds the Plan.
	File = "context/start.json"
	// FilesDir contains the settings files of the agent's adapter.
	FilesDir = "context/agent"
	// ProgramFile is the command line of Clew's tools.
	ProgramFile = "bin/clew"
)

// Plan is the agent's launch plan.
type Plan struct {
	AgentType v1alpha1.AgentType   `json:"agentType"`
	Memory    v1alpha1.AgentMemory `json:"memory"`
	// Session is the id of the agent's own session to resume; if it is empty, a new one
	// begins.
	Session string `json:"session,omitempty"`
	// Model is the model to use; if it is empty, the agent chooses.
	Model string `json:"model,omitempty"`
	// Tools is the program, with its arguments, that serves Clew's tools; empty for none.
	Tools []string `json:"tools,omitempty"`
	// HookSeconds is how long the agent waits for its hook; 0 for its default.
	HookSeconds int `json:"hookSeconds,omitempty"`
	// Prompt is the next user message, complete.
	Prompt string `json:"prompt"`
}

// Write writes the plan to the run folder.
func Write(runDir string, p Plan) error {
	data, err := json.MarshalIndent(p, "", " ")
	if err != nil {
		return fmt.Errorf("encode the launch plan: %w", err)
	}
	path := filepath.Join(runDir, File)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write the launch plan: %w", err)
	}
	// The agent's container may run under another user id.
	if err := durable.Write(path, data, 0o644); err != nil {
		return fmt.Errorf("write the launch plan: %w", err)
	}
	return nil
}

// Read reads the plan from the run folder. If there is none, the error is fs.ErrNotExist:
// an agent of type Exec is started by its template alone.
func Read(runDir string) (Plan, error) {
	var p Plan
	data, err := os.ReadFile(filepath.Join(runDir, File))
	if errors.Is(err, fs.ErrNotExist) {
		return p, err
	}
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	if err != nil {
		return p, fmt.Errorf("read the launch plan: %w", err)
	}
	return p, nil
}

// Remove deletes the plan of an earlier start.
func Remove(runDir string) error {
	err := os.Remove(filepath.Join(runDir, File))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the launch plan: %w", err)
	}
	return nil
}

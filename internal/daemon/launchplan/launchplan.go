// Package launchplan is how prepare tells the shim what the agent is to be started
// with: one small file in the run folder, which the agent cannot write to.
//
// The file is written last of all that prepare does, at once and whole: where it
// is, everything it names is there.
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

// Places in the run folder.
const (
	// File holds the Plan.
	File = "context/start.json"
	// FilesDir holds the settings that the agent's adapter makes.
	FilesDir = "context/agent"
)

// Plan is what an agent is started with.
type Plan struct {
	AgentType v1alpha1.AgentType   `json:"agentType"`
	Memory    v1alpha1.AgentMemory `json:"memory"`
	// Session is the id of the agent's own session to go on with; empty begins
	// a new one.
	Session string `json:"session,omitempty"`
	// Model to use; the agent's own choice when empty.
	Model string `json:"model,omitempty"`
	// Prompt is the next user message, whole.
	Prompt string `json:"prompt"`
}

// Write puts the plan in the run folder.
func Write(runDir string, p Plan) error {
	data, err := json.MarshalIndent(p, "", " ")
	if err != nil {
		return fmt.Errorf("encode the plan of the agent's start: %w", err)
	}
	path := filepath.Join(runDir, File)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write the plan of the agent's start: %w", err)
	}
	// The agent's container may run under another user id.
	if err := durable.Write(path, data, 0o644); err != nil {
		os.Remove(path + ".new")
		return fmt.Errorf("write the plan of the agent's start: %w", err)
	}
	return nil
}

// Read reads the plan from the run folder. Without one the error is
// fs.ErrNotExist: an agent of type Exec is started as its template says.
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
		return p, fmt.Errorf("read the plan of the agent's start: %w", err)
	}
	return p, nil
}

// Remove takes away the plan of an earlier start.
func Remove(runDir string) error {
	err := os.Remove(filepath.Join(runDir, File))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the plan of the agent's start: %w", err)
	}
	return nil
}

// Package keptspec decides what of a task's spec is kept with its history, so that the task can
// be forked when it is gone. It is pure.
//
// It keeps what it knows to be harmless, and names the rest: numbers, fields of Clew's own, names
// of objects, references to Secrets and ConfigMaps, and texts that are made of words, short numbers
// and paths, and in which nothing says that a secret follows. Keys and tokens are not made of words,
// wherever they are, and of generated passwords fewer than one in a thousand. A password that is
// made of words is kept where neither a name nor an option says what it is.
package keptspec

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/history"
)

// MaxBytes is how large a spec may be to be kept, as JSON: twice the longest prompt. A history
// keeps one for each task that ever ran.
const MaxBytes = 128 << 10

// inherited returns the part of a spec that a fork inherits, the parent only if that one still exists.
// Operations, where the task started, to where it publishes and who asked are not.
func inherited(spec *v1alpha1.TaskSpec) *v1alpha1.TaskSpec {
	return &v1alpha1.TaskSpec{
		Repository: spec.Repository, Prompt: spec.Prompt, PromptFrom: spec.PromptFrom, Agent: spec.Agent, Tools: spec.Tools, Template: spec.Template,
		Workspace: spec.Workspace, OperatingMode: spec.OperatingMode, CheckpointPolicy: spec.CheckpointPolicy,
		Conversation: spec.Conversation, BackoffLimit: spec.BackoffLimit, RetryOn: spec.RetryOn, FailOn: spec.FailOn,
		DeadlineSeconds: spec.DeadlineSeconds, Budget: spec.Budget, NodeLoss: spec.NodeLoss,
		Contract: spec.Contract, Role: spec.Role, ParentRef: spec.ParentRef, Children: spec.Children, OnFinish: spec.OnFinish,
	}
}

// Of returns what is kept of a spec: nothing of one that is too large.
func Of(spec *v1alpha1.TaskSpec) (history.KeptSpec, error) {
	data, err := json.Marshal(inherited(spec))
	if err != nil {
		return history.KeptSpec{}, fmt.Errorf("encode the spec: %w", err)
	}
	if len(data) > MaxBytes {
		return history.KeptSpec{}, nil // nor looked at, which takes time
	}
	var tree map[string]any
	if err := json.Unmarshal(data, &tree); err != nil {
		return history.KeptSpec{}, fmt.Errorf("decode the spec: %w", err)
	}
	c := cleaner{}
	for _, path := range [][]string{{"repository"}, {"template"}, {"children", "template", "container"}} { // all others are Clew's own
		c.part(tree, path)
	}
	if data, err = json.Marshal(tree); err != nil {
		return history.KeptSpec{}, fmt.Errorf("encode the spec: %w", err)
	}
	c.kept.Spec = string(data)
	return c.kept, nil
}

// Read returns a kept spec.
func Read(kept history.KeptSpec) (*v1alpha1.TaskSpec, error) {
	spec := &v1alpha1.TaskSpec{}
	if err := json.Unmarshal([]byte(kept.Spec), spec); err != nil {
		return nil, fmt.Errorf("decode the kept spec: %w", err)
	}
	return spec, nil
}

// cleaner removes from a spec what it does not know to be harmless.
type cleaner struct {
	kept history.KeptSpec
	// agent is true within the agent's container.
	agent bool
}

// part cleans the part of a spec at a path, if the spec has it.
func (c *cleaner) part(spec map[string]any, path []string) {
	last := len(path) - 1
	for _, field := range path[:last] {
		below, ok := spec[field].(map[string]any)
		if !ok {
			return
		}
		spec = below
	}
	if value, ok := spec[path[last]]; ok {
		spec[path[last]] = c.clean("spec."+strings.Join(path, "."), path[last], value)
	}
}

// clean returns a value without what is not kept. field is the name of the field that it is in.
func (c *cleaner) clean(path, field string, value any) any {
	switch v := value.(type) {
	case map[string]any:
		if chosen[field] {
			c.entries(path, v)
		} else {
			c.object(path, field, v)
		}
	case []any:
		c.list(path, field, v)
	case string:
		if !keeps(field, v) {
			c.kept.Fields = append(c.kept.Fields, path)
			return ""
		}
	}
	return value
}

// entries cleans a map whose keys are chosen by users.
func (c *cleaner) entries(path string, o map[string]any) {
	for _, key := range slices.Sorted(maps.Keys(o)) {
		value, isText := o[key].(string)
		switch {
		case !Harmless("", key): // it is not named either
			c.kept.Fields = append(c.kept.Fields, path)
			delete(o, key)
		case isText && !Harmless(key, value):
			c.kept.Fields = append(c.kept.Fields, path+"."+key)
			o[key] = ""
		}
	}
}

// object cleans the fields of an object.
func (c *cleaner) object(path, list string, o map[string]any) {
	name, _ := o["name"].(string)
	if value, ok := o["value"].(string); ok {
		if !Harmless(name, value) {
			c.leaveOut(path, list, name)
			value = ""
		}
		delete(o, "value")
		defer func() { o["value"] = value }()
	}
	if list == "containers" {
		c.agent = name == v1alpha1.AgentContainer
		defer func() { c.agent = false }()
	}
	for _, key := range slices.Sorted(maps.Keys(o)) {
		o[key] = c.clean(path+"."+key, key, o[key])
	}
}

// leaveOut names the value of a pair of name and value that is not kept.
func (c *cleaner) leaveOut(path, list, name string) {
	if c.agent && list == "env" && objectName.MatchString(name) {
		c.kept.Variables = append(c.kept.Variables, name)
	} else {
		c.kept.Fields = append(c.kept.Fields, path+".value")
	}
}

// list cleans the elements of a list. A word of a command is judged with the option before it.
func (c *cleaner) list(path, field string, elements []any) {
	option := ""
	for i, e := range elements {
		at := fmt.Sprintf("%s[%d]", path, i)
		text, isText := e.(string)
		switch {
		case isText && (field == "command" || field == "args"):
			if !harmlessWord(option, text) {
				c.kept.Fields = append(c.kept.Fields, at)
				elements[i] = ""
			}
			option = optionOf(text)
		default:
			elements[i] = c.clean(at, field, e)
		}
	}
}

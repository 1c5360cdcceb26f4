// Package keptspec decides what of a task's spec is kept with its history, so that the task can
// be forked when it is gone. It is pure.
//
// It promises that what its rules take for secret, by a name or by a value, is not kept; that what is
// left out is named; and that references to Secrets are kept, which hold no secret. The rules are
// a guess: a password that looks like a word is kept, as it is in the Task itself.
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

// Of returns what is kept of a spec: nothing of one that is too large. Operations, where the task started, to where it publishes
// and who asked are left out, since a fork inherits none of them.
func Of(spec *v1alpha1.TaskSpec) (history.KeptSpec, error) {
	inherited := spec.DeepCopy()
	inherited.StartFrom, inherited.Adopt, inherited.Resume, inherited.Rewind = nil, "", nil, nil
	inherited.Publish, inherited.Acknowledge, inherited.RequestedBy = nil, nil, nil
	data, err := json.Marshal(inherited)
	if err != nil {
		return history.KeptSpec{}, fmt.Errorf("encode the spec: %w", err)
	}
	var tree any
	if err := json.Unmarshal(data, &tree); err != nil {
		return history.KeptSpec{}, fmt.Errorf("decode the spec: %w", err)
	}
	c := cleaner{}
	tree = c.clean("spec", "", tree)
	if data, err = json.Marshal(tree); err != nil {
		return history.KeptSpec{}, fmt.Errorf("encode the spec: %w", err)
	}
	if len(data) > MaxBytes {
		return history.KeptSpec{}, nil
	}
	c.kept.Spec = string(data)
	for i, field := range c.kept.Fields { // Postgres stores no NUL, which the key of a map may contain
		c.kept.Fields[i] = strings.ReplaceAll(field, "\x00", "\uFFFD")
	}
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

// cleaner removes from a spec what looks secret.
type cleaner struct {
	kept history.KeptSpec
	// agent is true within the agent's container.
	agent bool
}

// clean returns a value of the spec without what looks secret. field is the name of the field
// that it is in.
func (c *cleaner) clean(path, field string, value any) any {
	switch v := value.(type) {
	case map[string]any:
		c.object(path, field, v)
	case []any:
		c.list(path, field, v)
	case string:
		if !free[field] && valueLooksSecret(v) {
			c.kept.Fields = append(c.kept.Fields, path)
			return ""
		}
	}
	return value
}

// free are the fields that are kept whatever they look like: a prompt, which the conversation has
// as well, and digests of images and commits.
var free = map[string]bool{"prompt": true, "image": true, "reference": true, "ref": true}

// object cleans the fields of an object.
func (c *cleaner) object(path, list string, o map[string]any) {
	name, _ := o["name"].(string)
	if value, ok := o["value"].(string); ok && (nameLooksSecret(name, value) || valueLooksSecret(value)) {
		o["value"] = ""
		if c.agent && list == "env" {
			c.kept.Variables = append(c.kept.Variables, name)
		} else {
			c.kept.Fields = append(c.kept.Fields, path+".value")
		}
	}
	if list == "containers" {
		c.agent = name == v1alpha1.AgentContainer
		defer func() { c.agent = false }()
	}
	for _, key := range slices.Sorted(maps.Keys(o)) {
		o[key] = c.clean(path+"."+key, key, o[key])
	}
}

// list cleans the elements of a list. One that follows an option that looks as if it took a
// secret is taken for that.
func (c *cleaner) list(path, field string, elements []any) {
	option := ""
	for i, e := range elements {
		at := fmt.Sprintf("%s[%d]", path, i)
		text, isText := e.(string)
		if isText && nameLooksSecret(option, text) {
			c.kept.Fields = append(c.kept.Fields, at)
			elements[i] = ""
		} else {
			elements[i] = c.clean(at, field, e)
		}
		if option = ""; isText && strings.HasPrefix(text, "-") && !strings.Contains(text, "=") {
			option = strings.TrimLeft(text, "-")
		}
	}
}

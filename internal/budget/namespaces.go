package budget

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/clew-dev/clew/api/v1alpha1"
)

// NamespacesHelp is the help of a flag that is a ByNamespace.
const NamespacesHelp = `JSON with what all tasks of a namespace may spend together in a calendar month, in UTC, such as {"perNamespace": {"costMicroUSD": 500000000}, "namespaces": {"team": {"inputTokens": 1000000}}}: in the namespaces that are named, what is said there counts instead`

// ByNamespace are the budgets of namespaces for a calendar month. The zero value has none. It is a
// pflag.Value.
type ByNamespace struct {
	// PerNamespace is that of each namespace which Namespaces does not name; nil for none.
	PerNamespace *v1alpha1.Budget `json:"perNamespace,omitempty"`
	// Namespaces are those of single namespaces. One without a limit may spend anything.
	Namespaces map[string]*v1alpha1.Budget `json:"namespaces,omitempty"`
}

// Of returns the limits of a namespace.
func (b ByNamespace) Of(namespace string) Amounts {
	if own, ok := b.Namespaces[namespace]; ok {
		return LimitsOf(own)
	}
	return LimitsOf(b.PerNamespace)
}

// Set reads the budgets from JSON.
func (b *ByNamespace) Set(text string) error {
	var read ByNamespace
	decoder := json.NewDecoder(bytes.NewReader([]byte(text)))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&read); err != nil {
		return fmt.Errorf(`it is no JSON such as {"perNamespace": {"costMicroUSD": 500000000}}: %w`, err)
	}
	var problems []error
	check := func(where string, of *v1alpha1.Budget) {
		a := LimitsOf(of)
		for _, limit := range []int64{a.InputTokens, a.OutputTokens, a.CostMicroUSD, a.ToolCalls, a.Checkpoints} {
			if limit < 0 || limit > Most {
				problems = append(problems, fmt.Errorf("%s has the limit %d: use a number from 1, or leave it out", where, limit))
			}
		}
	}
	check("perNamespace", read.PerNamespace)
	for name, of := range read.Namespaces {
		check("namespaces."+name, of)
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	*b = read
	return nil
}

// String returns the budgets as JSON.
func (b *ByNamespace) String() string {
	if b.PerNamespace == nil && len(b.Namespaces) == 0 {
		return "{}"
	}
	text, err := json.Marshal(b)
	if err != nil {
		return "{}" // numbers and names only
	}
	return string(text)
}

// Type is how help names such a value.
func (*ByNamespace) Type() string { return "json" }

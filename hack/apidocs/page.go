package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/clew-dev/clew/internal/reason"
)

type schema = apiextensionsv1.JSONSchemaProps

// renderKind returns the page of a kind, from the files below root.
func renderKind(root, plural, name string) (string, error) {
	manifest, err := os.ReadFile(filepath.Join(root, "config", "crd", "bases", "clew.dev_"+plural+".yaml"))
	if err != nil {
		return "", err
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(manifest, &crd); err != nil {
		return "", fmt.Errorf("read the manifest: %w", err)
	}
	sample, err := os.ReadFile(filepath.Join(root, "config", "samples", name+".yaml"))
	if err != nil {
		return "", err
	}
	conditions, err := conditionsOf(filepath.Join(root, "api", "v1alpha1", "reasons.go"))
	if err != nil {
		return "", err
	}
	version := crd.Spec.Versions[0]
	whole := version.Schema.OpenAPIV3Schema
	kind := crd.Spec.Names.Kind
	p := &strings.Builder{}
	fmt.Fprintf(p, "<!-- Written by `make manifests`. Edit the comments of api/v1alpha1 and the table of internal/reason instead. -->\n\n# %s\n\n%s\n\n", kind, whole.Description)
	fmt.Fprintf(p, "Short names: %s. `kubectl explain %s.spec` says the same in a terminal.\n\n", codes(crd.Spec.Names.ShortNames), crd.Spec.Names.Singular)
	fmt.Fprintf(p, "## Example\n\n```yaml\n%s```\n\n", sample)
	p.WriteString("## Columns of `kubectl get`\n\n| column | from |\n|---|---|\n")
	for _, column := range version.AdditionalPrinterColumns {
		name := column.Name
		if column.Priority > 0 {
			name += " (`-o wide`)"
		}
		fmt.Fprintf(p, "| %s | `%s` |\n", name, strings.ReplaceAll(column.JSONPath, "|", `\|`))
	}
	for _, part := range []string{"spec", "status"} {
		fmt.Fprintf(p, "\n## `%s`\n\n| field | type | what it says |\n|---|---|---|\n", part)
		s := whole.Properties[part]
		writeFields(p, part, &s)
	}
	p.WriteString("\n## Conditions and reasons\n")
	writeConditions(p, kind, conditions[kind])
	return p.String(), nil
}

// writeFields writes a row for each field below a path. Kubernetes' own types, those of the
// pod template and of conditions, get one row without their fields.
func writeFields(p *strings.Builder, path string, s *schema) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		field := s.Properties[name]
		at := path + "." + name
		fmt.Fprintf(p, "| `%s` | %s | %s |\n", at, typeOf(&field), describe(&field, slices.Contains(s.Required, name)))
		if at == "spec.template" || name == "conditions" {
			continue
		}
		writeFields(p, at, &field)
		if field.Items != nil && field.Items.Schema != nil {
			writeFields(p, at+"[]", field.Items.Schema)
		}
	}
}

func typeOf(s *schema) string {
	switch {
	case s.Type == "array" && s.Items != nil && s.Items.Schema != nil:
		return "list of " + typeOf(s.Items.Schema)
	case s.Type == "object" && s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil:
		return "map to " + typeOf(s.AdditionalProperties.Schema)
	case s.Format == "date-time":
		return "time"
	case s.XIntOrString:
		return "integer or string"
	}
	return s.Type
}

// describe returns a field's comment, followed by what the API server checks.
func describe(s *schema, required bool) string {
	parts := []string{strings.Join(strings.Fields(s.Description), " ")}
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if required {
		add("Required.")
	}
	if s.Default != nil {
		add("Default: `%s`.", s.Default.Raw)
	}
	if len(s.Enum) > 0 {
		var values []string
		for _, v := range s.Enum {
			var text string
			if json.Unmarshal(v.Raw, &text) != nil {
				text = string(v.Raw)
			}
			values = append(values, text)
		}
		add("One of %s.", codes(values))
	}
	if s.Minimum != nil {
		add("At least %v.", int64(*s.Minimum))
	}
	if s.Maximum != nil {
		add("At most %v.", int64(*s.Maximum))
	}
	if s.MaxLength != nil {
		add("At most %d characters.", *s.MaxLength)
	}
	if s.MaxItems != nil {
		add("At most %d.", *s.MaxItems)
	}
	for _, rule := range s.XValidations {
		if rule.Message != "" {
			add("Rule: %s.", strings.TrimSuffix(rule.Message, "."))
		}
	}
	return strings.ReplaceAll(strings.TrimSpace(strings.Join(parts, " ")), "|", `\|`)
}

// writeConditions writes the conditions of a kind, and then the other places in it where
// reasons occur.
func writeConditions(p *strings.Builder, kind string, conditions []condition) {
	var places []string
	for _, c := range conditions {
		fmt.Fprintf(p, "\n### `%s`\n\n%s\n", c.Type, c.Text)
		writeReasons(p, reason.Place{Kind: kind, Condition: c.Type})
		places = append(places, c.Type)
	}
	for _, r := range reason.All() {
		for _, place := range r.On {
			if place.Kind != kind || slices.Contains(places, place.Condition) {
				continue
			}
			places = append(places, place.Condition)
			fmt.Fprintf(p, "\n### %s\n", place.Condition)
			writeReasons(p, place)
		}
	}
}

func writeReasons(p *strings.Builder, place reason.Place) {
	p.WriteString("\n| reason | meaning | what to do |\n|---|---|---|\n")
	for _, r := range reason.At(place.Kind, place.Condition) {
		fmt.Fprintf(p, "| `%s` | %s | %s |\n", r.Name, r.Meaning, r.TodoAt(place))
	}
}

func codes(words []string) string {
	var quoted []string
	for _, w := range words {
		quoted = append(quoted, "`"+w+"`")
	}
	return strings.Join(quoted, ", ")
}

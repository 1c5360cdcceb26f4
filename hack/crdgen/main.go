// Command crdgen removes from a CustomResourceDefinition the descriptions of Kubernetes'
// own fields (those below spec.template), so that the file stays small enough for every way
// of applying it, while `kubectl explain` still describes our own fields.
//
//	crdgen FILE...
package main

import (
	"bytes"
	"fmt"
	"os"

	"sigs.k8s.io/yaml"
)

func main() {
	for _, file := range os.Args[1:] {
		if err := strip(file); err != nil {
			fmt.Fprintf(os.Stderr, "crdgen: %s: %v\n", file, err)
			os.Exit(1)
		}
	}
}

func strip(file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var crd map[string]any
	if err := yaml.Unmarshal(content, &crd); err != nil {
		return err
	}
	versions, _ := at(crd, "spec", "versions").([]any)
	for _, version := range versions {
		dropDescriptions(at(version, "schema", "openAPIV3Schema", "properties", "spec", "properties", "template", "properties"))
	}
	out, err := yaml.Marshal(crd)
	if err != nil {
		return err
	}
	return os.WriteFile(file, bytes.Join([][]byte{[]byte("---\n"), out}, nil), 0o644)
}

// at returns the value at a path of nested maps, or nil.
func at(node any, path ...string) any {
	for _, key := range path {
		m, ok := node.(map[string]any)
		if !ok {
			return nil
		}
		node = m[key]
	}
	return node
}

// dropDescriptions removes every description that is documentation, and keeps fields that
// happen to have that name.
func dropDescriptions(node any) {
	switch n := node.(type) {
	case map[string]any:
		if _, text := n["description"].(string); text {
			delete(n, "description")
		}
		for _, child := range n {
			dropDescriptions(child)
		}
	case []any:
		for _, child := range n {
			dropDescriptions(child)
		}
	}
}

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
)

// condition is a type of condition, with the comment of its constant.
type condition struct{ Type, Text string }

// conditionsOf returns the condition types of each kind, from the constants in a file. The
// name of a constant begins with its kind, or with Snapshot for a ConversationSnapshot.
func conditionsOf(file string) (map[string][]condition, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
	if err != nil {
		return nil, fmt.Errorf("read the conditions: %w", err)
	}
	prefixes := map[string]string{"Task": "Task", "Checkpoint": "Checkpoint", "Snapshot": "ConversationSnapshot", "Fork": "Fork"}
	found := map[string][]condition{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		name := spec.Names[0].Name
		for prefix, kind := range prefixes {
			if !strings.HasPrefix(name, prefix) || spec.Doc == nil {
				continue
			}
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil || strings.Contains(value, "/") { // a label or a finalizer
				continue
			}
			text := strings.Join(strings.Fields(spec.Doc.Text()), " ")
			found[kind] = append(found[kind], condition{Type: value, Text: strings.Replace(text, name, "`"+value+"`", 1)})
		}
		return true
	})
	return found, nil
}

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLinksOfDocumentsLeadSomewhere checks every relative link of every document: its
// target exists, and a Go file declares each identifier that the link's text has in
// backticks. This keeps the map of the code up with the code.
func TestLinksOfDocumentsLeadSomewhere(t *testing.T) {
	root := filepath.Join("..", "..")
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "-co", "--exclude-standard", "*.md").Output()
	if err != nil {
		t.Fatalf("list the documents: %v", err)
	}
	link := regexp.MustCompile(`\[([^\]]+)\]\(([^)#\s]+)(#[^)]*)?\)`)
	for _, document := range strings.Fields(string(out)) {
		text, err := os.ReadFile(filepath.Join(root, document))
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range link.FindAllStringSubmatch(string(text), -1) {
			label, target := found[1], found[2]
			if strings.Contains(target, "://") {
				continue
			}
			path := filepath.Join(root, filepath.Dir(document), target)
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s links to %s, which does not exist", document, target)
				continue
			}
			if !strings.HasSuffix(path, ".go") {
				continue
			}
			declared := declarations(t, path)
			for _, name := range namesIn(label) {
				if !declared[name] {
					t.Errorf("%s says that %s declares %s, but it does not", document, target, name)
				}
			}
		}
	}
}

// namesIn returns the Go identifiers that a link's text has in backticks. Text that is not
// an identifier, such as a path, is left out.
func namesIn(label string) []string {
	var names []string
	identifier := regexp.MustCompile("`([A-Za-z_][A-Za-z0-9_]*)`")
	for _, found := range identifier.FindAllStringSubmatch(label, -1) {
		names = append(names, found[1])
	}
	return names
}

// declarations returns the names that a file declares: its package, functions, methods,
// types, fields, constants and variables.
func declarations(t *testing.T, path string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatalf("parse %s: %v", path, err)
	}
	declared := map[string]bool{file.Name.Name: true}
	ast.Inspect(file, func(node ast.Node) bool {
		switch n := node.(type) {
		case *ast.BlockStmt:
			return false
		case *ast.FuncDecl:
			declared[n.Name.Name] = true
		case *ast.TypeSpec:
			declared[n.Name.Name] = true
		case *ast.Field:
			for _, name := range n.Names {
				declared[name.Name] = true
			}
		case *ast.ValueSpec:
			for _, name := range n.Names {
				declared[name.Name] = true
			}
		}
		return true
	})
	return declared
}

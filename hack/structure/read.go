package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// file holds what was measured in one file.
type file struct {
	path, folder string
	lines        int
	imports      []string
	functions    []function
	// undocumented lists the exported names that have no comment.
	undocumented []string
	// waits counts waits for time, conditions those of three and more parts, tests the Test
	// functions, and specs the Its and Entries of Ginkgo.
	waits, conditions, tests, specs int
}

// function is one function or method.
type function struct {
	name        string
	line, lines int
}

// isTest reports whether only tests use a file.
func (f file) isTest() bool {
	return strings.HasSuffix(f.path, "_test.go") || strings.HasPrefix(f.folder, "internal/testing") ||
		strings.HasPrefix(f.folder, "internal/e2e") || strings.HasSuffix(f.folder, "daemontest")
}

// readModule reads all Go files below a folder, except generated ones.
func readModule(root fs.FS) (files []file, err error) {
	var found []waits
	err = fs.WalkDir(root, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || d.Name() != "." && strings.HasPrefix(d.Name(), ".")):
			return fs.SkipDir
		case d.IsDir() || path.Ext(name) != ".go":
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		set := token.NewFileSet()
		tree, err := parser.ParseFile(set, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		if !ast.IsGenerated(tree) {
			files = append(files, measure(set, name, tree, bytes.Count(text, []byte("\n"))))
			found = append(found, waitsOf(tree))
		}
		return nil
	})
	countWaits(files, found)
	return files, err
}

// measure measures one file.
func measure(set *token.FileSet, name string, tree *ast.File, lines int) file {
	f := file{path: name, folder: path.Dir(name), lines: lines}
	for _, spec := range tree.Imports {
		if imported, err := strconv.Unquote(spec.Path.Value); err == nil {
			f.imports = append(f.imports, imported)
		}
	}
	for _, decl := range tree.Decls {
		f.declaration(set, decl, tree.Name.Name == "main" || f.isTest())
	}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			f.call(n)
		case *ast.BinaryExpr:
			if parts(n) >= 3 {
				f.conditions++
			}
			return !logical(n)
		}
		return true
	})
	return f
}

// declaration measures a function, or records exported names without a comment. Programs
// and tests are private: they export nothing.
func (f *file) declaration(set *token.FileSet, decl ast.Decl, private bool) {
	record := func(name *ast.Ident, doc *ast.CommentGroup) {
		if name.IsExported() && doc == nil && !private {
			f.undocumented = append(f.undocumented, fmt.Sprintf("%s:%d %s", f.path, set.Position(name.Pos()).Line, name.Name))
		}
	}
	switch d := decl.(type) {
	case *ast.FuncDecl:
		first, last := set.Position(d.Pos()).Line, set.Position(d.End()).Line
		f.functions = append(f.functions, function{d.Name.Name, first, last - first + 1})
		if d.Recv == nil && strings.HasPrefix(d.Name.Name, "Test") && strings.HasSuffix(f.path, "_test.go") && d.Name.Name != "TestMain" {
			f.tests++
		}
		if d.Recv == nil || receiverIsExported(d) {
			record(d.Name, d.Doc)
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				record(s.Name, either(s.Doc, d.Doc))
			case *ast.ValueSpec:
				for _, name := range s.Names {
					record(name, either(s.Doc, s.Comment, d.Doc))
				}
			}
		}
	}
}

// receiverIsExported reports whether a method belongs to an exported type.
func receiverIsExported(d *ast.FuncDecl) bool {
	receiver := d.Recv.List[0].Type
	for {
		switch r := receiver.(type) {
		case *ast.StarExpr:
			receiver = r.X
		case *ast.IndexExpr:
			receiver = r.X
		case *ast.Ident:
			return r.IsExported()
		default:
			return false
		}
	}
}

// either returns the first comment that is not nil.
func either(docs ...*ast.CommentGroup) *ast.CommentGroup {
	for _, doc := range docs {
		if doc != nil {
			return doc
		}
	}
	return nil
}

// call counts a call that makes a spec.
func (f *file) call(n *ast.CallExpr) {
	switch called := n.Fun.(type) {
	case *ast.SelectorExpr:
		if of, ok := called.X.(*ast.Ident); ok && of.Name == "ginkgo" && isSpec(called.Sel.Name) {
			f.specs++
		}
	case *ast.Ident:
		if isSpec(called.Name) {
			f.specs++
		}
	}
}

// isSpec reports whether a function of Ginkgo makes one spec.
func isSpec(name string) bool { return name == "It" || name == "Specify" || name == "Entry" }

func logical(n ast.Expr) bool {
	b, ok := n.(*ast.BinaryExpr)
	return ok && (b.Op == token.LAND || b.Op == token.LOR)
}

// parts returns the number of conditions joined by && and ||; 1 for any other expression.
func parts(n ast.Expr) int {
	switch e := n.(type) {
	case *ast.ParenExpr:
		return parts(e.X)
	case *ast.BinaryExpr:
		if logical(e) {
			return parts(e.X) + parts(e.Y)
		}
	}
	return 1
}

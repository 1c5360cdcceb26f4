package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

// TestLogLinesHaveOneStyle checks every log message: it begins in lower case, has no
// full stop, and is followed by pairs of keys and values.
func TestLogLinesHaveOneStyle(t *testing.T) {
	root, lines := filepath.Join("..", ".."), 0
	for _, folder := range []string{"internal", "cmd"} {
		err := fs.WalkDir(os.DirFS(filepath.Join(root, folder)), ".", func(path string, _ fs.DirEntry, err error) error {
			code := strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go")
			if err != nil || !code {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, filepath.Join(root, folder, path), nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			ast.Inspect(file, func(node ast.Node) bool {
				if call, is := node.(*ast.CallExpr); is {
					if message, values, is := logged(call); is {
						lines++
						if wrong := styleOf(message, values); wrong != "" {
							t.Errorf("%s: the message %q %s", set.Position(call.Pos()), message, wrong)
						}
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if lines < 100 {
		t.Errorf("only %d log calls were found", lines)
	}
}

// styleOf returns what is wrong with a message, or nothing.
func styleOf(message string, values int) string {
	first := []rune(message + "  ")
	switch {
	case unicode.IsUpper(first[0]) && !unicode.IsUpper(first[1]):
		return "begins with a capital"
	case strings.HasSuffix(message, "."):
		return "ends in a full stop"
	case values%2 != 0:
		return "is followed by a key without a value"
	}
	return ""
}

// logged returns the message of a call of a logr.Logger, and the number of arguments that
// follow it. is is false for any other call.
func logged(call *ast.CallExpr) (message string, values int, is bool) {
	method, is := call.Fun.(*ast.SelectorExpr)
	if !is || !isLogger(method.X) {
		return "", 0, false
	}
	at := map[string]int{"Info": 0, "Error": 1}
	place, is := at[method.Sel.Name]
	if !is || len(call.Args) <= place {
		return "", 0, false
	}
	literal, is := call.Args[place].(*ast.BasicLit)
	if !is || call.Ellipsis.IsValid() {
		return "", 0, false
	}
	message, err := strconv.Unquote(literal.Value)
	return message, len(call.Args) - place - 1, err == nil
}

// isLogger recognises a logger by its name: log, p.log, log.V(1), logf.FromContext(ctx).
func isLogger(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return strings.EqualFold(x.Name, "log")
	case *ast.SelectorExpr:
		return strings.EqualFold(x.Sel.Name, "log")
	case *ast.CallExpr:
		if method, is := x.Fun.(*ast.SelectorExpr); is {
			return method.Sel.Name == "FromContext" || isLogger(method.X)
		}
	}
	return false
}

func TestStyleOfLogLines(t *testing.T) {
	for message, c := range map[string]struct {
		values int
		want   string
	}{
		"serving":            {values: 2},
		"TLS is off":         {},
		"Serving":            {want: "begins with a capital"},
		"serving.":           {want: "ends in a full stop"},
		"serving at address": {values: 1, want: "is followed by a key without a value"},
	} {
		if got := styleOf(message, c.values); got != c.want {
			t.Errorf("%q %s, want %q", message, got, c.want)
		}
	}
}

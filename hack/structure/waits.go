package main

import "go/ast"

// waits holds what one file has of waiting for time: the statements that wait, the functions
// that do nothing else, and the calls of functions by name.
type waits struct {
	statements int
	functions  []string
	calls      map[string]int
}

// waitsOf counts calls of time.Sleep, and receives from time.After that are statements by
// themselves. In a select, time.After limits the wait for something else, and does not count.
func waitsOf(tree *ast.File) waits {
	w := waits{calls: map[string]int{}}
	limits := map[ast.Stmt]bool{}
	ast.Inspect(tree, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv == nil && onlyWaits(n.Body) {
				w.functions = append(w.functions, n.Name.Name)
			}
		case *ast.CommClause:
			limits[n.Comm] = true
		case *ast.ExprStmt:
			if receivesAfter(n) && !limits[n] {
				w.statements++
			}
		case *ast.CallExpr:
			if ofTime(n, "Sleep") {
				w.statements++
			}
			if called, ok := n.Fun.(*ast.Ident); ok {
				w.calls[called.Name]++
			}
		}
		return true
	})
	return w
}

// countWaits sets the waits of each file, with the calls of the functions of its folder that
// only wait.
func countWaits(files []file, found []waits) {
	wrappers := map[[2]string]bool{}
	for i, f := range files {
		for _, name := range found[i].functions {
			wrappers[[2]string{f.folder, name}] = true
		}
	}
	for i := range files {
		files[i].waits = found[i].statements
		for name, calls := range found[i].calls {
			if wrappers[[2]string{files[i].folder, name}] {
				files[i].waits += calls
			}
		}
	}
}

// onlyWaits reports whether a function's body is one wait for time, which a second channel
// may cut short.
func onlyWaits(body *ast.BlockStmt) bool {
	if body == nil || len(body.List) != 1 {
		return false
	}
	switch s := body.List[0].(type) {
	case *ast.ExprStmt:
		call, ok := s.X.(*ast.CallExpr)
		return receivesAfter(s) || ok && ofTime(call, "Sleep")
	case *ast.SelectStmt:
		timed := false
		for _, clause := range s.Body.List {
			c := clause.(*ast.CommClause)
			if len(c.Body) > 0 {
				return false
			}
			timed = timed || receivesAfter(c.Comm)
		}
		return timed
	}
	return false
}

// receivesAfter reports whether a statement is a receive from time.After.
func receivesAfter(s ast.Stmt) bool {
	statement, ok := s.(*ast.ExprStmt)
	if !ok {
		return false
	}
	receive, ok := statement.X.(*ast.UnaryExpr)
	if !ok {
		return false
	}
	call, ok := receive.X.(*ast.CallExpr)
	return ok && ofTime(call, "After")
}

// ofTime reports whether a call is of this function of package time.
func ofTime(call *ast.CallExpr, name string) bool {
	called, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || called.Sel.Name != name {
		return false
	}
	of, ok := called.X.(*ast.Ident)
	return ok && of.Name == "time"
}

// Command structure measures how the code is built: packages, lines, functions, files,
// imports between layers, undocumented names, repetition, and what makes tests hard to
// read. With -against it measures a commit as well, by the same rules, and prints both
// side by side:
//
//	go run ./hack/structure -against HEAD~20
//
// It reads the Go files of the module in the current folder and runs none of them.
// Generated files and testdata are left out. Lines are lines of files, with comments and
// blank lines.
//
// An import runs up if it is of a higher layer, or of a neighbour in the same layer. Both
// states are judged by today's layers (layers.go). A package of the older state that
// no longer exists is judged as the package that git finds most of its files in today. A
// package that is in no layer, and that git finds nowhere, is not judged, and listed.
//
// Tests wait for time where they sleep, receive from time.After, or call a function of
// their package that does only that.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	against := flag.String("against", "", "measure this commit as well, and print both side by side")
	flag.Parse()
	if err := run(context.Background(), *against, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "structure:", err)
		os.Exit(1)
	}
}

// state is the code at one moment.
type state struct {
	name        string
	code, tests []file
	layers      layers
	// repeatedCode and repeatedTests are passages that occur more than once, longest first.
	repeatedCode, repeatedTests []passage
}

func run(ctx context.Context, against string, to io.Writer) error {
	var states []*state
	if against != "" {
		older, err := measureCommit(ctx, against)
		if err != nil {
			return err
		}
		states = append(states, older)
	}
	now, err := measureFolder(".", "now", layers{})
	if err != nil {
		return err
	}
	render(to, append(states, now))
	return nil
}

// measureFolder measures the module in a folder.
func measureFolder(root, name string, layers layers) (*state, error) {
	files, err := readModule(os.DirFS(root))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no Go files; run this in the folder of the module", root)
	}
	s := &state{name: name, layers: layers}
	for _, f := range files {
		if f.isTest() {
			s.tests = append(s.tests, f)
		} else {
			s.code = append(s.code, f)
		}
	}
	if s.repeatedCode, err = repetition(root, s.code); err != nil {
		return nil, err
	}
	s.repeatedTests, err = repetition(root, s.tests)
	return s, err
}

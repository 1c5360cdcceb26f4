// Command structure measures how the code is built: packages, lines, functions, files,
// imports between floors, undocumented names, repetition, and what makes tests hard to
// read. With -against it measures a commit as well, by the same rules, and prints both
// side by side:
//
//	go run ./hack/structure -against HEAD~20
//
// It reads the Go files of the module in the current folder and runs none of them.
// Generated files and testdata are left out. Lines are lines of files, with comments and
// blank lines.
//
// Both states are judged by today's floors (floors.go). A package of the older state that
// has no floor was renamed or removed since: it is judged as the package that git finds
// most of its files in today. A package that git finds nowhere is not judged, and listed.
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
	floors      floors
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
	now, err := measureFolder(".", "now", floors{})
	if err != nil {
		return err
	}
	render(to, append(states, now))
	return nil
}

// measureFolder measures the module in a folder.
func measureFolder(root, name string, floors floors) (*state, error) {
	files, err := readModule(os.DirFS(root))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s has no Go files; run this in the folder of the module", root)
	}
	s := &state{name: name, floors: floors}
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

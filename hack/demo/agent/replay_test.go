package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// place gives the agent its own working directory, home and conversation file.
func place(t *testing.T) (conversation string) {
	t.Chdir(t.TempDir())
	t.Setenv("HOME", t.TempDir())
	conversation = filepath.Join(t.TempDir(), "conversation.jsonl")
	t.Setenv("CLEW_CONVERSATION", conversation)
	return conversation
}

// tree reads the agent's files.
func tree(t *testing.T) map[string]string {
	t.Helper()
	got, err := readTree(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestEveryPrefixEndsInTheSameTree(t *testing.T) {
	const calls = 30
	want, _ := generated{calls: calls, seed: 7}.files(calls)
	for cut := 0; cut <= calls; cut += 3 {
		conversation := place(t)
		var first bytes.Buffer
		if err := run(context.Background(), []string{"--delay=0", "--seed=7", fmt.Sprintf("--calls=%d", cut)}, &first); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(conversation, first.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		var second bytes.Buffer
		if err := run(context.Background(), []string{"--delay=0", "--seed=7", "--check", fmt.Sprintf("--calls=%d", calls)}, &second); err != nil {
			t.Fatalf("after %d calls: %v", cut, err)
		}
		if d := cmp.Diff(want, tree(t)); d != "" {
			t.Fatalf("after %d calls (-want +got):\n%s", cut, d)
		}
		if n := strings.Count(first.String()+second.String(), `"tool_result"`); n != calls {
			t.Fatalf("after %d calls: the two runs printed %d results, want %d", cut, n, calls)
		}
	}
}

// If the last one or two calls are forgotten, they are repeated, with the same result.
func TestForgottenCallsAreRepeated(t *testing.T) {
	for forgotten := 1; forgotten <= ahead; forgotten++ {
		for calls := forgotten; calls < 22; calls++ {
			conversation := place(t)
			var out bytes.Buffer
			p := generated{calls: calls, seed: 1}
			if err := run(context.Background(), []string{"--delay=0", fmt.Sprintf("--calls=%d", calls)}, &out); err != nil {
				t.Fatal(err)
			}
			var kept []string
			for line := range strings.Lines(out.String()) {
				if strings.Contains(line, fmt.Sprintf(`"id":"%s"`, callID(calls-forgotten+1))) {
					break
				}
				kept = append(kept, line)
			}
			kept = append(kept, fmt.Sprintf(`{"type":"tool_result","id":"%s","interrupted":true}`, callID(calls-forgotten+1)))
			os.WriteFile(conversation, []byte(strings.Join(kept, "")), 0o600)
			if err := run(context.Background(), []string{"--delay=0", "--check", fmt.Sprintf("--calls=%d", calls)}, &out); err != nil {
				t.Fatalf("%d of %d calls forgotten: %v", forgotten, calls, err)
			}
			want, _ := p.files(calls)
			if d := cmp.Diff(want, tree(t)); d != "" {
				t.Fatalf("%d of %d calls forgotten (-want +got):\n%s", forgotten, calls, d)
			}
		}
	}
}

func TestCheckFindsDamage(t *testing.T) {
	damage := map[string]func(conversation string){
		"a lost file":        func(string) { os.RemoveAll("replay/part-0") },
		"a changed file":     func(string) { os.WriteFile(file(2), []byte("x"), 0o644) },
		"an unexpected file": func(string) { os.WriteFile("replay/strange", nil, 0o644) },
		"lost memory":        func(c string) { os.WriteFile(c, nil, 0o600) },
		"lost state":         func(string) { os.RemoveAll(filepath.Join(os.Getenv("HOME"), ".replay")) },
		"a repeated answer":  func(c string) { add(c, `{"type":"tool_result","id":"call-2"}`) },
		"an unknown answer":  func(c string) { add(c, `{"type":"tool_result","id":"call-77"}`) },
	}
	for name, harm := range damage {
		t.Run(name, func(t *testing.T) {
			conversation := place(t)
			var out bytes.Buffer
			if err := run(context.Background(), []string{"--delay=0", "--calls=12"}, &out); err != nil {
				t.Fatal(err)
			}
			os.WriteFile(conversation, out.Bytes(), 0o600)
			harm(conversation)
			var mismatch *mismatchError
			if err := run(context.Background(), []string{"--delay=0", "--calls=20", "--check"}, &out); !errors.As(err, &mismatch) {
				t.Fatalf("got %v, want an error that memory and files disagree", err)
			}
		})
	}
}

// Files that the last calls wrote are damaged as by a power failure, and the answers of
// these calls are lost.
func TestRepairAfterAPowerFailure(t *testing.T) {
	const calls, answered = 24, 13
	for name, tear := range map[string]func(path string, written []byte){
		"missing": func(path string, _ []byte) { os.Remove(path) },
		"empty":   func(path string, _ []byte) { os.WriteFile(path, nil, 0o644) },
		"zeroed":  func(path string, written []byte) { os.WriteFile(path, make([]byte, len(written)), 0o644) },
	} {
		t.Run(name, func(t *testing.T) {
			conversation := place(t)
			p := generated{calls: calls, seed: 1}
			did := func(n int, more ...string) string {
				var out bytes.Buffer
				if err := run(context.Background(), append([]string{"--delay=0", fmt.Sprintf("--calls=%d", n)}, more...), &out); err != nil {
					t.Fatal(err)
				}
				return out.String()
			}
			os.WriteFile(conversation, []byte(did(answered)), 0o600)
			did(answered + 5)
			for path := range touched(p, answered) {
				if written, err := os.ReadFile(path); err == nil {
					tear(path, written)
				}
			}
			os.WriteFile(filepath.Join(os.Getenv("HOME"), ".replay", "state.json"), make([]byte, 11), 0o600)

			did(calls, "--check", "--torn")

			want, _ := p.files(calls)
			if d := cmp.Diff(want, tree(t)); d != "" {
				t.Fatalf("files (-want +got):\n%s", d)
			}
		})
	}
}

// Damage to files that no later call changes is an error, and is not repaired.
func TestFilesOfAnsweredCallsAreNotRepaired(t *testing.T) {
	for name, harm := range map[string]func(){
		"a zeroed file": func() { os.WriteFile(file(2), make([]byte, 10), 0o644) },
		"a lost file":   func() { os.Remove(file(2)) },
		"a lost state":  func() { os.RemoveAll(filepath.Join(os.Getenv("HOME"), ".replay")) },
	} {
		t.Run(name, func(t *testing.T) {
			conversation := place(t)
			var out bytes.Buffer
			if err := run(context.Background(), []string{"--delay=0", "--calls=12"}, &out); err != nil {
				t.Fatal(err)
			}
			os.WriteFile(conversation, out.Bytes(), 0o600)
			harm()
			var mismatch *mismatchError
			if err := run(context.Background(), []string{"--delay=0", "--calls=20", "--check", "--torn"}, &out); !errors.As(err, &mismatch) {
				t.Fatalf("got %v, want an error that memory and files disagree", err)
			}
		})
	}
}

// add appends a line to a file.
func add(path, line string) {
	data, _ := os.ReadFile(path)
	os.WriteFile(path, append(data, line+"\n"...), 0o600)
}

func TestScript(t *testing.T) {
	place(t)
	script := filepath.Join(t.TempDir(), "s.json")
	os.WriteFile(script, []byte(`[{"message":"First I look around."},
		{"name":"write_file","input":{"path":"a/b","content":"x"}},
		{"name":"shell","input":{"command":"cat a/b; exit 3"}},
		{"name":"nothing"}]`), 0o600)
	var out bytes.Buffer
	if err := run(context.Background(), []string{"--delay=0", "--check", script}, &out); err != nil {
		t.Fatal(err)
	}
	var results []string
	for line := range strings.Lines(out.String()) {
		var l struct {
			Type, Output string
			IsError      bool
		}
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatal(err)
		}
		if l.Type == "tool_result" {
			results = append(results, fmt.Sprint(l.Output, l.IsError))
		}
	}
	want := []string{"false", "wrote 1 bytes to a/bfalse", "x …true", `there is no tool "nothing"true`}
	if d := cmp.Diff(want, results); d != "" {
		t.Fatalf("files (-want +got):\n%s", d)
	}
}

// The shell, or the command it waits for, is killed before the agent.
func TestACallWhoseShellIsKilledHasNoAnswer(t *testing.T) {
	for _, command := range []string{"kill -TERM $$", "kill -KILL $$", "sh -c 'kill -TERM $$' && touch done", "sh -c 'kill -KILL $$'; exit $?"} {
		t.Run(command, func(t *testing.T) {
			place(t)
			script := filepath.Join(t.TempDir(), "s.json")
			calls, _ := json.Marshal([]call{{Name: "shell", Input: json.RawMessage(fmt.Sprintf(`{"command": %q}`, command))}})
			os.WriteFile(script, calls, 0o600)
			var out bytes.Buffer
			if err := run(context.Background(), []string{"--delay=0", script}, &out); err == nil {
				t.Error("the agent continued without an error")
			}
			if strings.Contains(out.String(), "tool_result") {
				t.Errorf("the agent printed a result of the killed call:\n%s", out.String())
			}
			if n, _ := stateFile(filepath.Join(os.Getenv("HOME"), ".replay", "state.json")).read(); n != 0 {
				t.Errorf("the agent counts %d calls, want 0", n)
			}
		})
	}
}

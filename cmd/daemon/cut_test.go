package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/clew-dev/clew/api/v1alpha1"
	"github.com/clew-dev/clew/internal/daemon/daemontest"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

// cutAgent plays the parts of agents that are killed before they have printed what they did:
// they end by themselves if CUT_END is set, and otherwise work until they are killed.
func cutAgent(part string, args []string, say func(string)) {
	resumed := slices.Contains(args, "--resume") || slices.Contains(args, "--session")
	switch part {
	case "opencode":
		if resumed {
			say(`{"type":"text","sessionID":"ses_1","part":{"type":"text","text":"DONE"}}`)
			return
		}
		data := filepath.Join(os.Getenv("HOME"), ".local/share/opencode")
		os.MkdirAll(data, 0o755)
		os.WriteFile(filepath.Join(data, "opencode.db"), []byte("ses_1"), 0o600)
		say(`{"type":"step_start","sessionID":"ses_1","part":{"type":"step-start"}}`)
		// What its plugin does before a tool.
		hook := exec.Command(filepath.Join(os.Getenv("FAKE_RUN_DIR"), "bin/clew-daemon"), "hook", "--run-dir", os.Getenv("FAKE_RUN_DIR"))
		hook.Stdin = strings.NewReader(`{"tool":"bash","callID":"call-7","args":{"command":"make"}}`)
		if out, err := hook.CombinedOutput(); err != nil || len(out) > 0 {
			say(fmt.Sprintf("the hook: %v %s", err, out))
		}
		os.WriteFile("made", nil, 0o600)
	case "tokens":
		chat := filepath.Join(os.Getenv("HOME"), ".gemini/tmp/workspace/chats/session-2026-11-21T01-36-"+geminiChat[:8]+".jsonl")
		os.MkdirAll(filepath.Dir(chat), 0o755)
		note := func(line string) {
			f, _ := os.OpenFile(chat, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			f.WriteString(line + "\n")
			f.Close()
		}
		step := func(n int) {
			id := fmt.Sprintf("c-%d", n)
			answer := fmt.Sprintf(`{"id":"m-%d","type":"gemini","tokens":{"input":%d,"output":20,"cached":40,"total":%d},"model":"gemini-2.5-flash"`, n, 100+n, 120+n)
			note(answer + `}`)
			say(`{"type":"tool_use","tool_name":"shell","tool_id":"` + id + `","parameters":{}}`)
			note(answer + `,"toolCalls":[{"id":"` + id + `","result":[{}]}]}`)
			say(`{"type":"tool_result","tool_id":"` + id + `","status":"success","output":"ok"}`)
		}
		say(`{"type":"init","session_id":"` + geminiChat + `","model":"gemini-2.5-flash"}`)
		if resumed {
			step(3)
			// These totals include a request to the model that is in no file.
			say(`{"type":"result","status":"success","stats":{"models":{"gemini-2.5-flash":{"input_tokens":203,"output_tokens":40,"cached":40,"total_tokens":243}}}}`)
			return
		}
		note(`{"sessionId":"` + geminiChat + `"}`)
		step(1)
		time.Sleep(500 * time.Millisecond) // the agent's tool takes a while, in which a checkpoint is taken
		step(2)
	}
	if os.Getenv("CUT_END") != "" {
		os.Exit(137)
	}
	time.Sleep(time.Minute) // at work until it is killed
}

const geminiChat = "d4a342ce-945f-430c-8aa6-839a0c27b5c3"

// cutAndResumed runs two attempts of an agent that plays a part. In the first one the agent
// is killed, or the whole pod at once when the condition holds.
func cutAndResumed(t *testing.T, kind, part string, podToo bool, when func(*daemontest.World, *daemontest.Task) bool) *daemontest.World {
	t.Helper()
	w := daemontest.NewWorld(t, nil)
	w.Agent, w.Policy.EveryToolCalls = v1alpha1.AgentType(kind), 1
	env := []string{}
	if !podToo {
		env = append(env, "CUT_END=1")
	}
	p := fakePod(t, w, part, env...)
	if podToo {
		gomega.NewWithT(t).Eventually(func() (holds bool) {
			w.Server.Inspect(w.UID, func(k *daemontest.Task) { holds = when(w, k) })
			return holds
		}).WithTimeout(time.Minute).Should(gomega.BeTrue(), func() string { return "the agent does not reach the point to kill it\n" + p.sidecar.out.String() })
		p.kill()
	} else {
		select {
		case <-p.agent.done:
		case <-time.After(time.Minute):
			t.Fatalf("the agent did not end within a minute\n%s", p.sidecar.out.String())
		}
		p.sidecar.cmd.Process.Signal(os.Interrupt)
		<-p.sidecar.done
	}
	p.attempt, p.token = 2, daemontest.Token(t, w.UID, 2)
	// The prepare step may be killed and run again.
	for range 2 {
		prepared := p.startPrepare()
		<-prepared.done
		if r := p.result(); r.Reason != "Prepared" || r.Memory != v1alpha1.AgentMemorySession {
			t.Fatalf("prepare returned %+v, want Prepared with the agent's session\n%s", r, prepared.out.String())
		}
	}
	p.startSidecar()
	p.startAgent()
	p.end()
	return w
}

// TestTokensOfAKilledRunAreCounted once each, from the files of the session, although this
// agent prints its tokens only at its end.
func TestTokensOfAKilledRunAreCounted(t *testing.T) {
	for name, podToo := range map[string]bool{"its agent": false, "its pod": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := cutAndResumed(t, "GeminiCLI", "tokens", podToo, func(w *daemontest.World, k *daemontest.Task) bool {
				return slices.ContainsFunc(k.Records, func(r *daemonv1.Record) bool { return r.GetMessage().GetToolResult().GetCallId() == "c-2" })
			})
			total := &daemonv1.Usage{}
			w.Server.Inspect(w.UID, func(k *daemontest.Task) {
				for _, r := range k.Records {
					u := r.GetUsage()
					total.InputTokens += u.GetInputTokens()
					total.OutputTokens += u.GetOutputTokens()
					total.CachedInputTokens += u.GetCachedInputTokens()
					total.CostMicroUsd += u.GetCostMicroUsd()
				}
			})
			// 101 and 102 of the first run, and 203 from the result of the second.
			want := &daemonv1.Usage{InputTokens: 406, OutputTokens: 80, CachedInputTokens: 120}
			if diff := cmp.Diff(want, total, protocmp.Transform(), protocmp.IgnoreFields(&daemonv1.Usage{}, "cost_micro_usd")); diff != "" {
				t.Errorf("tokens counted (-want +got):\n%s", diff)
			}
			if total.CostMicroUsd == 0 {
				t.Error("the tokens have no cost")
			}
		})
	}
}

// TestACallThatIsNeverPrintedIsRecordedAsInterrupted: this agent prints a call when its tool
// has ended; the hook has reported it before.
func TestACallThatIsNeverPrintedIsRecordedAsInterrupted(t *testing.T) {
	for name, podToo := range map[string]bool{"the agent is killed": false, "the pod is killed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := cutAndResumed(t, "OpenCode", "opencode", podToo, func(w *daemontest.World, _ *daemontest.Task) bool {
				_, err := os.Stat(w.Path("made"))
				return err == nil
			})
			var got []string
			for _, line := range w.Lines() {
				if strings.HasSuffix(line, " call-7") {
					got = append(got, line)
				}
			}
			if diff := cmp.Diff([]string{"call call-7", "interrupted call-7"}, got); diff != "" {
				t.Errorf("records of the call (-want +got):\n%s\n%s", diff, strings.Join(w.Lines(), "\n"))
			}
		})
	}
}

package sidecar_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/onsi/gomega"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/clew-dev/clew/internal/daemon/daemontest"
	"github.com/clew-dev/clew/internal/daemon/sidecar"
	"github.com/clew-dev/clew/internal/daemon/socket"
	"github.com/clew-dev/clew/internal/daemon/volume"
	"github.com/clew-dev/clew/internal/daemon/wire"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

func expectLines(t *testing.T, w *daemontest.World, want ...string) {
	t.Helper()
	w.Server.Until(t, "the server has the conversation", w.UID, func(k *daemontest.Task) bool { return len(k.Active) >= len(want) })
	if diff := cmp.Diff(want, w.Lines()); diff != "" {
		t.Fatalf("conversation (-want +got):\n%s", diff)
	}
}

// expectCheckpoint compares the fields of a checkpoint that are set in want.
func expectCheckpoint(t *testing.T, got, want *daemonv1.CheckpointRecord) {
	t.Helper()
	compared := &daemonv1.CheckpointRecord{}
	want.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if got.ProtoReflect().Has(field) {
			compared.ProtoReflect().Set(field, got.ProtoReflect().Get(field))
		}
		return true
	})
	if diff := cmp.Diff(want, compared, protocmp.Transform()); diff != "" {
		t.Errorf("checkpoint %d (-want +got):\n%s", got.GetNumber(), diff)
	}
}

// expectNumber fails the test if the newest checkpoint is not the one with the number.
func expectNumber(t *testing.T, w *daemontest.World, want int64) {
	t.Helper()
	if c := latest(w); c.GetNumber() != want {
		t.Errorf("the newest checkpoint is %d, want %d: %v", c.GetNumber(), want, c)
	}
}

func durable(n int64) func(*daemontest.Task) bool {
	return func(t *daemontest.Task) bool { return t.Checkpoints[n].GetDurable() }
}

// latest returns the newest checkpoint that the server has; nil for none.
func latest(w *daemontest.World) (c *daemonv1.CheckpointRecord) {
	w.Server.Inspect(w.UID, func(t *daemontest.Task) { c = t.Latest() })
	return c
}

func TestFromStartToCompletion(t *testing.T) {
	w := daemontest.NewWorld(t, map[string]string{"a.txt": "a\n", "dir/b.txt": "b\n"})
	w.Policy.EveryToolCalls = 2
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	if diff := cmp.Diff(wire.Welcome{Attempt: 1}, a.Welcome); diff != "" {
		t.Fatalf("welcome (-want +got):\n%s", diff)
	}
	a.Say("plain", "output", `{"type":"message","text":"Hello."}`)
	a.Call("1")
	w.Write("a.txt", "changed\n")
	a.Call("2")
	a.Recorded()
	a.Next(wire.TypeThaw)
	w.Server.Until(t, "the checkpoint is durable", w.UID, durable(1))
	c := latest(w)
	expectCheckpoint(t, c, &daemonv1.CheckpointRecord{Number: 1, Trigger: "ToolCalls", FilesChanged: 1, GitBranch: "main", DirtyFiles: []string{"a.txt"}})
	if c.GetBase() == "" {
		t.Error("the checkpoint has no base commit")
	}
	a.Say(`{"type":"usage","inputTokens":5}`, `{"type":"tool_call","id":"3","name":"x"}`, "torn {")
	a.Send(wire.TypeExit, wire.Exit{Code: 0})
	a.Next(wire.TypeRelease)
	expectLines(t, w, "user Do it.", "output plain\noutput\n", "assistant Hello.", "call 1", "result 1", "call 2", "result 2",
		"call 3", "output torn {\n", "interrupted 3")
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Number: 2, Trigger: "Completion", Durable: true})
	if latest(w).GetParent() == "" {
		t.Error("the last checkpoint has no parent")
	}
	want := []string{"refs/clew/uid-1/code/1", "refs/clew/uid-1/code/2", "refs/clew/uid-1/head/" + c.GetGitHead(), "refs/clew/uid-1/state/1", "refs/clew/uid-1/state/2"}
	if diff := cmp.Diff(want, w.Git.Refs(t, "store")); diff != "" {
		t.Errorf("refs in the gitstore (-want +got):\n%s", diff)
	}
	d.End()
}

func TestTriggersAtTheEnd(t *testing.T) {
	tests := []struct {
		name    string
		end     func(*daemontest.Shim)
		trigger string
	}{
		{"failure", func(a *daemontest.Shim) { a.Send(wire.TypeExit, wire.Exit{Code: 3}) }, "Failure"},
		{"suspend", func(a *daemontest.Shim) {
			a.Send(wire.TypeTerminating, nil)
			a.Send(wire.TypeExit, wire.Exit{Code: 143, Terminating: true})
		}, "Suspend"},
		{"killed", func(a *daemontest.Shim) { a.Close() }, "Failure"},
		{"killed while it ended", func(a *daemontest.Shim) { a.Send(wire.TypeTerminating, nil); a.Recorded(); a.Close() }, "Suspend"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := daemontest.NewWorld(t, nil)
			w.Prepare(1, nil)
			d := w.Start(1)
			a := w.Dial("s")
			w.Write("x", "x")
			a.Say("a")
			a.Recorded()
			tt.end(a)
			d.End()
			expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Number: 1, Trigger: tt.trigger, Durable: true})
		})
	}
}

func TestPodThatNeverHadAnAgent(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	w.Start(1).End()
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Trigger: "Suspend"})
}

// TestOutage: the agent works on while server and gitstore are down; afterwards
// everything arrives, once and in order.
func TestOutage(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Policy.EveryToolCalls = 1
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	w.Server.SetDown(true)
	w.Git.SetDown(true)
	want := []string{"user Do it."}
	for _, id := range []string{"1", "2", "3"} {
		w.Write("file-"+id, id)
		a.Call(id)
		a.Recorded()
		a.Next(wire.TypeThaw)
		want = append(want, "call "+id, "result "+id)
	}
	w.Server.SetDown(false)
	expectLines(t, w, want...)
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		expectCheckpoint(t, k.Latest(), &daemonv1.CheckpointRecord{Number: 3})
		if k.Latest().GetDurable() {
			t.Error("the checkpoint is durable while the gitstore is down")
		}
	})
	w.Git.SetDown(false)
	for n := range int64(3) {
		w.Server.Until(t, "all are durable", w.UID, durable(n+1))
	}
	a.Send(wire.TypeExit, wire.Exit{})
	a.Next(wire.TypeRelease)
	d.End()
}

// TestHold: while a store is down the shim is not released, unless the pod is to end, and
// the daemon does not end.
func TestHold(t *testing.T) {
	for _, which := range []string{"server", "gitstore"} {
		t.Run(which, func(t *testing.T) {
			t.Parallel()
			w := daemontest.NewWorld(t, nil)
			w.Prepare(1, nil)
			d := w.Start(1)
			a := w.Dial("s")
			down := w.Git.SetDown
			if which == "server" {
				down = w.Server.SetDown
			}
			down(true)
			a.Send(wire.TypeExit, wire.Exit{Code: 0})
			a.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
			if f, err := wire.Read(a.Reader); err == nil {
				t.Fatalf("the shim was sent a frame of type %d, want none", f.Type)
			}
			a.SetReadDeadline(time.Now().Add(20 * time.Second))
			a.Send(wire.TypeTerminating, nil)
			a.Next(wire.TypeRelease)
			a.Close()
			d.Terminate()
			select {
			case <-d.Done():
				t.Fatal("the daemon ended before everything was stored")
			case <-time.After(100 * time.Millisecond):
			}
			down(false)
			d.End()
			expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Trigger: "Completion", Durable: true})
		})
	}
}

// TestRefusedCheckpoint: a checkpoint that the gitstore refuses for good does not hold back
// others, is reported once, and does not keep the pod from ending.
func TestRefusedCheckpoint(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Policy.EveryToolCalls = 1
	w.Prepare(1, nil)
	words := strings.Repeat("ä", 1000)
	hook := "#!/bin/sh\nif grep -q /code/2; then echo 'clew: ObjectsRefused: " + words + "' >&2; exit 1; fi\n"
	if err := os.WriteFile(filepath.Join(w.Git.Dir, "store.git", "hooks", "pre-receive"), []byte(hook), 0o755); err != nil {
		t.Fatal(err)
	}
	d := w.Start(1)
	a := w.Dial("s")
	for _, id := range []string{"1", "2", "3"} {
		w.Write(id, id)
		a.Call(id)
		a.Recorded()
		a.Next(wire.TypeThaw)
	}
	a.Send(wire.TypeExit, wire.Exit{})
	a.Next(wire.TypeRelease)
	d.End()
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		got := map[int64]bool{}
		for n, c := range k.Checkpoints {
			got[n] = c.GetDurable()
		}
		if diff := cmp.Diff(map[int64]bool{1: true, 2: false, 3: true, 4: true}, got); diff != "" {
			t.Errorf("checkpoints that are durable (-want +got):\n%s", diff)
		}
		var events []*daemonv1.Event
		for _, r := range k.Records {
			if e := r.GetEvent(); e != nil {
				events = append(events, e)
			}
		}
		want := []*daemonv1.Event{{Reason: "CheckpointRefused", Details: map[string]string{"checkpoint": "2", "reason": "ObjectsRefused", "message": words[:1024]}}}
		if diff := cmp.Diff(want, events, protocmp.Transform(), protocmp.IgnoreFields(&daemonv1.Event{}, "message")); diff != "" {
			t.Fatalf("events (-want +got):\n%s", diff)
		}
		if length := len(events[0].GetMessage()); length > 1024 {
			t.Errorf("the event's message has %d bytes, want at most 1024", length)
		}
	})
}

func TestManualCheckpointOncePerObject(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	go func() {
		for { // answers Freeze
			f, err := wire.Read(a.Reader)
			if err != nil {
				return
			}
			if f.Type == wire.TypeFreeze {
				var z wire.Freeze
				f.Decode(&z)
				wire.Write(a, wire.TypeFrozen, z)
			}
		}
	}()
	for _, name := range []string{"one", "one", "two"} {
		w.Server.Ask(&daemonv1.TakeCheckpoint{Name: name, Uid: "uid-" + name, Message: "as " + name})
	}
	w.Server.Until(t, "both are taken", w.UID, func(k *daemontest.Task) bool { return len(k.Checkpoints) == 2 })
	w.Server.SetDown(true) // the stream breaks, and all are requested again
	w.Server.SetDown(false)
	w.Server.Ask(&daemonv1.TakeCheckpoint{Name: "three", Uid: "uid-three"})
	w.Server.Until(t, "the third is taken", w.UID, func(k *daemontest.Task) bool { return k.Latest().GetRequestedByUid() == "uid-three" })
	w.Server.Inspect(w.UID, func(k *daemontest.Task) {
		if len(k.Checkpoints) != 3 {
			t.Errorf("%d checkpoints were taken for 3 objects", len(k.Checkpoints))
		}
		expectCheckpoint(t, k.Checkpoints[1], &daemonv1.CheckpointRecord{Message: "as one", Trigger: "Manual"})
	})
	a.Close()
	d.End()
}

func TestIntervalOnlyWhenSomethingChanged(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds: make test runs it")
	}
	w := daemontest.NewWorld(t, nil)
	w.Policy.EverySeconds = 1
	w.Prepare(1, nil)
	d := w.Start(1)
	w.Server.Until(t, "the first is taken", w.UID, func(k *daemontest.Task) bool { return len(k.Checkpoints) == 1 })
	expectCheckpoint(t, latest(w), &daemonv1.CheckpointRecord{Number: 1, Trigger: "Interval"})
	gomega.NewWithT(t).Consistently(func() int64 { return latest(w).GetNumber() }).WithTimeout(2500*time.Millisecond).
		Should(gomega.BeEquivalentTo(1), "a checkpoint was taken although nothing had changed")
	w.Write("x", "x")
	w.Server.Until(t, "the second is taken", w.UID, func(k *daemontest.Task) bool { return len(k.Checkpoints) == 2 })
	d.End()
}

// TestRestart: a daemon that is started again in the same pod resumes with the same agent.
func TestRestart(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	d := w.Start(1)
	a := w.Dial("s")
	a.Call("1")
	a.Recorded()
	a.Say(`{"type":"tool_call","id":"2","name":"x"}`)
	a.Recorded()
	// Copied before the agent ends, so that the new daemon finds no last checkpoint.
	killed := w.CopyVolume()
	a.Close()
	d.End()

	killed.Server = daemontest.NewServer(t)
	d = killed.Start(1)
	a = killed.Dial("s")
	if a.Welcome.Line != 3 {
		t.Fatalf("lines through %d are recorded, want 3", a.Welcome.Line)
	}
	a.Sent = 1
	a.Say(`{"type":"tool_result","id":"1","output":"ok"}`, `{"type":"tool_call","id":"2","name":"x"}`, `{"type":"tool_result","id":"2","output":"ok"}`)
	a.Recorded()
	if stranger := killed.Dial("another"); stranger.Welcome.Line != -1 {
		t.Fatal("a second session was let in")
	}
	a.Send(wire.TypeExit, wire.Exit{Code: 0})
	a.Next(wire.TypeRelease)
	expectLines(t, killed, "user Do it.", "call 1", "result 1", "call 2", "result 2")
	d.End()

	// Once more, after the last checkpoint: it is not taken again.
	d = killed.Start(1)
	a = killed.Dial("s")
	a.Send(wire.TypeExit, wire.Exit{Code: 0})
	a.Next(wire.TypeRelease)
	expectNumber(t, killed, 1)
	d.End()
}

func TestFencedByServerOrGitstore(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for seconds: make test runs it")
	}
	for _, by := range []string{"server", "stream", "gitstore"} {
		t.Run(by, func(t *testing.T) {
			t.Parallel()
			w := daemontest.NewWorld(t, nil)
			w.Policy.EveryToolCalls = 1
			w.Prepare(1, nil)
			d := w.Start(1)
			a := w.Dial("s")
			a.Call("1")
			a.Recorded()
			a.Next(wire.TypeThaw)
			w.Server.Until(t, "it is durable", w.UID, durable(1))
			newer, _ := w.Client(2)
			switch by {
			case "gitstore":
				w.Git.Fence(2)
			default:
				if _, err := newer.Begin(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if by != "stream" {
				w.Write("two", "2") // there is something to push
				a.Call("2")
			}
			a.UntilStopped()
			a.Close() // its agent has ended
			// The volume is free for the newer attempt.
			w.RunDir = w.CopyVolume().RunDir
			w.Prepare(2, nil)
			if again := dialAt(t, d, a); again != wire.TypeStop {
				t.Fatalf("a shim that connects again is answered with a frame of type %d, want Stop", again)
			}
			d.End()
			// What was acknowledged before is in the spool, and prepare ships it.
			if n := int64(len(w.Lines())); n < 1+a.Acked {
				t.Fatalf("the server has %d messages, want at least the prompt and %d acknowledged lines", n, a.Acked)
			}
		})
	}
}

// dialAt connects to the daemon a was connected to and returns the answer's type.
func dialAt(t *testing.T, _ *daemontest.Sidecar, a *daemontest.Shim) wire.Type {
	t.Helper()
	c, err := net.Dial("unix", a.RemoteAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	wire.Write(c, wire.TypeHello, wire.Hello{Session: "s"})
	f, err := wire.Read(c)
	if err != nil {
		t.Fatal(err)
	}
	return f.Type
}

func TestHostileSocket(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	d := w.Start(1)
	path := filepath.Join(w.RunDir, socket.Name)
	for _, data := range []string{"\xff\xff\xff\xff\x02", "GET / HTTP/1.1\r\n\r\n", "\x00\x00\x00\x02\x01{}", "\x00\x00\x00\x02\x05{}"} {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(10 * time.Second))
		c.Write([]byte(data))
		if _, err := wire.Read(c); err == nil {
			t.Errorf("the daemon answered %q", data)
		}
		c.Close()
	}
	a := w.Dial("s")
	a.Sent = 4
	a.Say("a gap")
	if _, err := wire.Read(a.Reader); err == nil {
		t.Error("the daemon accepted a gap between lines")
	}
	a = w.Dial("s")
	a.Send(wire.TypeExit, wire.Exit{Code: 4711})
	if _, err := wire.Read(a.Reader); err == nil {
		t.Error("the daemon accepted an exit code out of range")
	}
	a = w.Dial("s")
	a.Say(strings.Repeat("x", wire.MaxChunk))
	a.Recorded()
	a.Send(wire.TypeExit, wire.Exit{})
	a.Next(wire.TypeRelease)
	d.End()
}

func TestNotPrepared(t *testing.T) {
	w := daemontest.NewWorld(t, nil)
	w.Prepare(1, nil)
	client, token := w.Client(2)
	err := sidecar.Run(t.Context(), sidecar.Config{Pod: w.Pod(2, nil), Paths: w.Paths(), RunDir: w.RunDir, Server: client, Remote: volume.Remote(w.Store, token, ""), Log: w.Log()})
	if err == nil || !strings.Contains(err.Error(), "prepare") {
		t.Fatalf("the daemon of an attempt that is not prepared ended with %v, want an error that names prepare", err)
	}
}

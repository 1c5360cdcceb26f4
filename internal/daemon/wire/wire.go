// Package wire is the protocol between the shim in the agent's container and the daemon,
// over the pod's unix socket.
//
// The daemon treats everything it reads here as sent by the agent, which may be hostile:
// frames are bounded, and none contains a path, a command or a number that the daemon acts
// on beyond the order of the agent's own output.
//
// A frame is the length of its body (4 bytes, big endian), its type (1 byte)
// and its body: for Line the number of the line (8 bytes), flags (1 byte) and
// the bytes; for every other type JSON.
//
// A session goes like this:
//
//	shim    Hello{session}
//	daemon  Welcome{line}          lines through that one are recorded
//	shim    Line 1, Line 2 …       numbered without gaps, again after a reconnect
//	daemon  Ack{line}              recorded on disk: must not be sent again
//	daemon  Freeze{id}             a checkpoint is about to be taken
//	shim    Frozen{id, running}    the agent is stopped, and all its output was sent
//	daemon  Thaw{id}               names the newest Freeze, when none is needed any longer
//	shim    Thawed{id}             the agent was continued without a Thaw: it took too long
//	shim    Terminating{}          the container was asked to end (SIGTERM)
//	shim    Exit{code}             the agent has ended, and all its output was sent
//	daemon  Finish{now}            end the agent: it is done, or silent for too long; or at once
//	daemon  Release{}              the last checkpoint is safe: the shim may end
//	daemon  Stop{}                 a newer attempt runs: end the agent at once
//
// Four frames need no session. Ping, answered by Pong, asks whether the daemon is up.
// BeforeTool, answered by Proceed, announces a tool call that the agent holds back: Proceed
// is sent when the checkpoint, if one was due, has been taken and a person, if one was to be
// asked, has answered; it may refuse the call. Tools, answered by
// ToolsOpened, opens a connection to Clew's tools: unless the answer is a refusal, what
// follows in both directions are the messages of MCP, one a line, and no more frames. Delivered,
// answered by Noted, says that the answers to calls of tools were written out.
package wire

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Type is the type of a frame.
type Type byte

// Types of the frames that the shim and the hook send.
const (
	TypeHello       Type = 1
	TypeLine        Type = 2
	TypeFrozen      Type = 3
	TypeTerminating Type = 4
	TypeExit        Type = 5
	TypePing        Type = 6
	TypeBeforeTool  Type = 7
	TypeThawed      Type = 8
	TypeTools       Type = 9
	TypeDelivered   Type = 10
)

// Types of the frames that the daemon sends.
const (
	TypeWelcome Type = 65
	TypeAck     Type = 66
	TypeFreeze  Type = 67
	TypeThaw    Type = 68
	TypeRelease Type = 69
	TypeStop    Type = 70
	TypePong    Type = 71
	TypeProceed Type = 72
	TypeFinish  Type = 73

	TypeToolsOpened Type = 74
	TypeNoted       Type = 75
)

const (
	// MaxChunk bounds, in bytes, the output in one Line; longer lines are sent in pieces.
	MaxChunk = 64 << 10
	// maxBody bounds, in bytes, the body of any frame.
	maxBody = MaxChunk + 16
	// firstBody is how much memory, in bytes, is allocated for a body before any of it has
	// arrived.
	firstBody = 1 << 10
	// maxSession bounds, in bytes, the name of a session.
	maxSession = 64
)

// Hello opens a session.
type Hello struct {
	// Session names one run of the agent. It is a secret between shim and daemon, so that
	// no other process can take over the session.
	Session string `json:"session"`
	// First is the oldest line that the shim still has, or the next one if it has none;
	// all lines before it were acknowledged. Shims of older releases send 0.
	First int64 `json:"first,omitempty"`
}

// Welcome answers Hello.
type Welcome struct {
	// Line is the last line of the session that is recorded.
	Line int64 `json:"line"`
	// Attempt is the number of the task's attempt.
	Attempt int64 `json:"attempt"`
}

// Line is a line of the agent's output, or a piece of one.
type Line struct {
	// Number is 1 for the first piece of the session, and increases by 1.
	Number int64
	// More is set if the line continues in the next piece.
	More bool
	// Data is the output, without the line end.
	Data []byte
}

// Ack acknowledges recorded lines.
type Ack struct {
	// Line is the last line recorded; all lines before it are recorded, too.
	Line int64 `json:"line"`
}

// Freeze asks for the agent to be stopped. It is also the body of Frozen, Thaw and Thawed.
type Freeze struct {
	// ID is the number of the freeze, which the answers repeat.
	ID int64 `json:"id"`
	// Running is set, in Frozen, if a process of the agent does not stop.
	Running bool `json:"running,omitempty"`
}

// Exit reports how the agent ended.
type Exit struct {
	// Code is the exit code, 128+n for a signal n.
	Code int `json:"code"`
	// Terminating is set if the container had been asked to end.
	Terminating bool `json:"terminating"`
	// Cause and Message are why the shim did not start the agent; empty if it did.
	// Cause is a value of agent.Cause.
	Cause   string `json:"cause,omitempty"`
	Message string `json:"message,omitempty"`
	// LastErrors are the last lines of the agent's standard error, masked, at
	// most MaxLastErrors bytes.
	LastErrors string `json:"lastErrors,omitempty"`
}

// MaxLastErrors bounds Exit.LastErrors.
const MaxLastErrors = 4 << 10

// Release lets the shim end.
type Release struct {
	// Code is the exit code to end with; nil means the agent's own. It differs if the
	// agent failed although it exited with 0, or the other way round.
	Code *int `json:"code,omitempty"`
}

// BeforeTool announces a tool call that waits for Proceed.
type BeforeTool struct {
	// ID is the call's id in the agent's output; empty if it is not known.
	ID string `json:"id,omitempty"`
	// Name is the tool's name.
	Name string `json:"name"`
	// Key identifies one run of the hook, which sends the call again after it has lost the
	// daemon.
	Key string `json:"key,omitempty"`
	// Input is the tool's input as JSON, or its beginning if Cut is set.
	Input string `json:"input"`
	Cut   bool   `json:"cut,omitempty"`
}

// Proceed answers BeforeTool.
type Proceed struct {
	// Refused is why the tool must not run, as a sentence for the agent; empty if it may.
	Refused string `json:"refused,omitempty"`
}

// Finish ends the agent.
type Finish struct {
	// Now kills it, so that it does nothing more; otherwise it is asked to end first. Shims of older
	// releases ask always.
	Now bool `json:"now,omitempty"`
}

// ToolsOpened answers Tools.
type ToolsOpened struct {
	// Refused is why the connection is not served, as a sentence that says what to do; empty
	// if it is.
	Refused string `json:"refused,omitempty"`
}

// Delivered says that answers have been written out where the agent reads them.
type Delivered struct {
	// Calls are the ids of the calls; see tools.CallKey.
	Calls []string `json:"calls"`
}

// WriteBeforeTool sends a BeforeTool, with as much of the input as fits into a frame.
func WriteBeforeTool(w io.Writer, b BeforeTool) error {
	for {
		body, err := json.Marshal(b)
		if err != nil {
			return err
		}
		if len(body) <= MaxChunk {
			return write(w, TypeBeforeTool, body)
		}
		if b.Input == "" {
			return errors.New("the names of a tool call are too long for a frame")
		}
		b.Input, b.Cut = strings.ToValidUTF8(b.Input[:min(len(b.Input)/2, MaxChunk-1024)], ""), true
	}
}

// Frame is one frame that was read.
type Frame struct {
	// Type determines which method decodes the body.
	Type Type
	body []byte
}

// Write sends a frame whose body is JSON; v is nil for an empty body.
func Write(w io.Writer, t Type, v any) error {
	body := []byte{}
	if v != nil {
		var err error
		if body, err = json.Marshal(v); err != nil {
			return err
		}
	}
	return write(w, t, body)
}

// WriteLine sends a line.
func WriteLine(w io.Writer, l Line) error {
	if len(l.Data) > MaxChunk {
		return fmt.Errorf("a piece of %d bytes is too long for a frame", len(l.Data))
	}
	body := make([]byte, 9, 9+len(l.Data))
	binary.BigEndian.PutUint64(body, uint64(l.Number))
	if l.More {
		body[8] = 1
	}
	return write(w, TypeLine, append(body, l.Data...))
}

func write(w io.Writer, t Type, body []byte) error {
	out := make([]byte, 5, 5+len(body))
	binary.BigEndian.PutUint32(out, uint32(len(body)))
	out[4] = byte(t)
	_, err := w.Write(append(out, body...))
	return err
}

// Read reads one frame. It returns an error for a frame that is longer than allowed.
func Read(r io.Reader) (Frame, error) {
	var header [5]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return Frame{}, err
	}
	n := binary.BigEndian.Uint32(header[:])
	if n > maxBody {
		return Frame{}, fmt.Errorf("a frame of %d bytes exceeds the limit of %d", n, maxBody)
	}
	body, err := readBody(r, int(n))
	if err != nil {
		return Frame{}, err
	}
	return Frame{Type: Type(header[4]), body: body}, nil
}

// readBody reads n bytes. It allocates memory as they arrive, so that a peer cannot make it
// allocate a whole body by sending a header alone.
func readBody(r io.Reader, n int) ([]byte, error) {
	body := make([]byte, 0, min(n, firstBody))
	for len(body) < n {
		more := min(n-len(body), max(len(body), firstBody))
		body = slices.Grow(body, more)
		next := len(body) + more
		_, err := io.ReadFull(r, body[len(body):next])
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, err
		}
		body = body[:next]
	}
	return body, nil
}

// Decode decodes the body of a frame other than Line into v.
func (f Frame) Decode(v any) error {
	if err := json.Unmarshal(f.body, v); err != nil {
		return fmt.Errorf("decode a frame of type %d: %w", f.Type, err)
	}
	return nil
}

// Hello decodes and checks the body of a Hello.
func (f Frame) Hello() (Hello, error) {
	var h Hello
	if err := f.Decode(&h); err != nil {
		return h, err
	}
	if h.Session == "" || len(h.Session) > maxSession {
		return h, fmt.Errorf("a session's name must have 1 to %d bytes", maxSession)
	}
	return h, nil
}

// Line decodes the body of a Line.
func (f Frame) Line() (Line, error) {
	if len(f.body) < 9 {
		return Line{}, errors.New("a line without a number")
	}
	l := Line{Number: int64(binary.BigEndian.Uint64(f.body)), More: f.body[8]&1 != 0, Data: f.body[9:]}
	if l.Number < 1 {
		return Line{}, errors.New("a line with a number below 1")
	}
	return l, nil
}

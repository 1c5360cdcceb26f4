// Package wire is what the shim in the agent's container and the daemon say to
// each other over the pod's unix socket.
//
// The daemon takes everything it reads here as said by the agent, which may be
// hostile: frames are bounded, and none carries a path, a command or a number
// that the daemon acts upon beyond the order of the agent's own output.
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
//	daemon  Ack{line}              recorded on disk: never to be sent again
//	daemon  Freeze{id}             a checkpoint is about to be taken
//	shim    Frozen{id, running}    the agent is stopped, all it wrote was sent
//	daemon  Thaw{id}               of the newest Freeze, when none is needed any more
//	shim    Thawed{id}             the agent goes on without a Thaw: it took too long
//	shim    Terminating{}          the shim was told to end (SIGTERM)
//	shim    Exit{code}             the agent has ended, all it wrote was sent
//	daemon  Finish{}               end the agent: it is done, or silent for too long
//	daemon  Release{}              the last checkpoint is safe: the shim may end
//	daemon  Stop{}                 a newer attempt runs: end the agent at once
//
// Ping, answered by Pong, asks whether the daemon is up, without a session. So
// does BeforeTool, answered by Proceed, tell of a tool call that the agent holds
// back: Proceed comes when a checkpoint was taken, if one was due.
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

// Type of a frame.
type Type byte

// Frames of the shim.
const (
	TypeHello       Type = 1
	TypeLine        Type = 2
	TypeFrozen      Type = 3
	TypeTerminating Type = 4
	TypeExit        Type = 5
	TypePing        Type = 6
	TypeBeforeTool  Type = 7
	TypeThawed      Type = 8
)

// Frames of the daemon.
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
)

const (
	// MaxChunk is the most bytes of output in one Line; longer lines are sent in pieces.
	MaxChunk = 64 << 10
	// maxBody bounds the body of any frame.
	maxBody = MaxChunk + 16
	// firstBody is how much room is made for a body of which nothing has come yet.
	firstBody = 1 << 10
	// maxSession bounds the name of a session.
	maxSession = 64
)

// Hello opens a session. Session names one run of the agent; it is a secret
// between shim and daemon, so that nobody else can go on with it.
type Hello struct {
	Session string `json:"session"`
	// First is the oldest line that the shim still has, or the next one; those
	// before it were acknowledged. It is 0 from shims of older releases.
	First int64 `json:"first,omitempty"`
}

// Welcome answers Hello.
type Welcome struct {
	// Line is the last line of the session that is recorded.
	Line int64 `json:"line"`
	// Attempt is the number of the task's attempt.
	Attempt int64 `json:"attempt"`
}

// Line is a piece of the agent's output.
type Line struct {
	Number int64
	// More says that the line goes on in the next piece.
	More bool
	Data []byte
}

// Ack says that lines through Line are recorded.
type Ack struct {
	Line int64 `json:"line"`
}

// Freeze asks for the agent to be stopped; Frozen, Thaw and Thawed carry the same id.
type Freeze struct {
	ID int64 `json:"id"`
	// Running says, in Frozen, that some process of the agent does not stop.
	Running bool `json:"running,omitempty"`
}

// Exit says how the agent ended.
type Exit struct {
	// Code is the exit code, 128+n for a signal n.
	Code int `json:"code"`
	// Terminating says that the shim had been told to end.
	Terminating bool `json:"terminating"`
	// Cause and Message say why the shim did not start the agent; empty if it did.
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
	// Code is the exit code to end with, if it is another than the agent's: an
	// agent may have failed although it says it did not.
	Code *int `json:"code,omitempty"`
}

// BeforeTool tells of a tool call that waits for Proceed.
type BeforeTool struct {
	// ID is the call's, as in the agent's output, if it is known.
	ID   string `json:"id,omitempty"`
	Name string `json:"name"`
	// Key tells one run of the hook from another, which asks again when the
	// daemon was away.
	Key string `json:"key,omitempty"`
	// Input is JSON; only its beginning if Cut.
	Input string `json:"input"`
	Cut   bool   `json:"cut,omitempty"`
}

// WriteBeforeTool sends a BeforeTool, with as much of the input as a frame
// takes.
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

// Frame is one frame as read.
type Frame struct {
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

// Read reads one frame. A frame longer than any that is allowed is an error.
func Read(r io.Reader) (Frame, error) {
	var header [5]byte
	if _, err := io.ReadFull(r, header[:]); err != nil {
		return Frame{}, err
	}
	n := binary.BigEndian.Uint32(header[:])
	if n > maxBody {
		return Frame{}, fmt.Errorf("a frame of %d bytes is longer than any that is allowed", n)
	}
	body, err := readBody(r, int(n))
	if err != nil {
		return Frame{}, err
	}
	return Frame{Type: Type(header[4]), body: body}, nil
}

// readBody reads n bytes. It takes memory as they come: a header alone costs whoever
// sends it nothing.
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

// Decode reads the body of a frame other than Line.
func (f Frame) Decode(v any) error {
	if err := json.Unmarshal(f.body, v); err != nil {
		return fmt.Errorf("a frame of type %d cannot be read: %w", f.Type, err)
	}
	return nil
}

// Hello reads the body of a Hello.
func (f Frame) Hello() (Hello, error) {
	var h Hello
	if err := f.Decode(&h); err != nil {
		return h, err
	}
	if h.Session == "" || len(h.Session) > maxSession {
		return h, errors.New("a session's name has 1 to 64 bytes")
	}
	return h, nil
}

// Line reads the body of a Line.
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

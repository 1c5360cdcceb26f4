package conversation

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"math"
	"strings"
	"unicode/utf8"
)

// Role identifies the author of a message.
type Role string

// The roles.
const (
	// RoleUser is the user, who instructs the agent.
	RoleUser Role = "user"
	// RoleAssistant is the agent's model.
	RoleAssistant Role = "assistant"
	// RoleSystem is the agent program or Clew, for notices and errors.
	RoleSystem Role = "system"
	// RoleTool is a tool, whose messages are results.
	RoleTool Role = "tool"
	// RoleOutput is output of the agent that is not a message.
	RoleOutput Role = "output"
)

// Message is one complete message.
type Message struct {
	Role Role
	Text string
	// ToolCall is set on an assistant's message that calls a tool.
	ToolCall *ToolCall
	// ToolResult is set on the result of a tool call.
	ToolResult *ToolResult
	// Raw is the agent's original line if it could not be parsed.
	Raw string
	// TextPieces and RawPieces are set if Text or Raw is only the beginning.
	TextPieces *Pieces
	RawPieces  *Pieces
}

// ToolCall is a request to run a tool. Input is JSON, kept byte for byte.
type ToolCall struct {
	ID    string
	Name  string
	Input string
	// InputPieces is set if Input is only the beginning, which then is not valid
	// JSON.
	InputPieces *Pieces
}

// ToolResult is the result of the tool call with the id CallID.
type ToolResult struct {
	CallID  string
	Output  string
	IsError bool
	// Interrupted is true if the agent ended before the tool returned a result.
	Interrupted bool
	// OutputPieces is set if Output is only the beginning.
	OutputPieces *Pieces
}

// Hash is the content address of a message within one namespace.
type Hash [sha256.Size]byte

// hashVersion must change whenever the rules of Message.Hash change.
const hashVersion = "clew message 1"

// Hash returns the message's content address. Two messages of one namespace have
// the same address if role, text, tool name, input, output, flags and raw line are
// equal byte for byte; a text that was cut is represented by its pieces. Ids and
// times are not included. The namespace is, so that a hash reveals nothing about
// the content of another namespace.
func (m Message) Hash(namespace string) Hash {
	h := fieldHash{sha256.New()}
	h.text(hashVersion)
	h.text(namespace)
	h.text(string(m.Role))
	h.whole(m.Text, m.TextPieces)
	h.whole(m.Raw, m.RawPieces)
	h.flag(m.ToolCall != nil)
	if c := m.ToolCall; c != nil {
		h.text(c.Name)
		h.whole(c.Input, c.InputPieces)
	}
	h.flag(m.ToolResult != nil)
	if r := m.ToolResult; r != nil {
		h.whole(r.Output, r.OutputPieces)
		h.flag(r.IsError)
		h.flag(r.Interrupted)
	}
	return Hash(h.Sum(nil))
}

// fieldHash hashes fields with their lengths, so that different lists of fields never
// produce the same input.
type fieldHash struct{ hash.Hash }

// text adds a text with its length.
func (h fieldHash) text(s string) {
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(s)))
	h.Write(length[:])
	h.Write([]byte(s))
}

// cut replaces the length for a text that is hashed by its pieces. No text is
// that long.
const cut = math.MaxUint64

// whole adds a text, by its pieces if it was cut. A text that was not cut is added
// as text does, so that addresses from before pieces existed stay valid.
func (h fieldHash) whole(text string, p *Pieces) {
	if p == nil {
		h.text(text)
		return
	}
	var head [24]byte
	binary.BigEndian.PutUint64(head[0:], cut)
	binary.BigEndian.PutUint64(head[8:], uint64(p.Bytes))
	binary.BigEndian.PutUint64(head[16:], uint64(len(p.Hashes)))
	h.Write(head[:])
	for _, hash := range p.Hashes {
		h.text(string(hash))
	}
}

// flag adds a boolean.
func (h fieldHash) flag(b bool) {
	if b {
		h.Write([]byte{1})
	} else {
		h.Write([]byte{0})
	}
}

// Cuttable points to a text of a message that may be cut, and to its pieces.
type Cuttable struct {
	Text   *string
	Pieces **Pieces
}

// Texts returns the texts of the message that may be cut.
func (m *Message) Texts() []Cuttable {
	texts := []Cuttable{{&m.Text, &m.TextPieces}, {&m.Raw, &m.RawPieces}}
	if c := m.ToolCall; c != nil {
		texts = append(texts, Cuttable{&c.Input, &c.InputPieces})
	}
	if r := m.ToolResult; r != nil {
		texts = append(texts, Cuttable{&r.Output, &r.OutputPieces})
	}
	return texts
}

// Clone returns a copy of m whose texts can be changed without changing m.
func (m Message) Clone() Message {
	if m.ToolCall != nil {
		c := *m.ToolCall
		m.ToolCall = &c
	}
	if m.ToolResult != nil {
		r := *m.ToolResult
		m.ToolResult = &r
	}
	return m
}

// Clean returns a copy of the message with CleanText applied to each text.
func (m Message) Clean() Message {
	m.Text = CleanText(m.Text)
	m.Raw = CleanText(m.Raw)
	if m.ToolCall != nil {
		c := *m.ToolCall
		c.ID, c.Name, c.Input = CleanText(c.ID), CleanText(c.Name), CleanText(c.Input)
		m.ToolCall = &c
	}
	if m.ToolResult != nil {
		r := *m.ToolResult
		r.CallID, r.Output = CleanText(r.CallID), CleanText(r.Output)
		m.ToolResult = &r
	}
	return m
}

// CleanText makes any bytes valid for a text column, visibly: each run of bytes
// that is not UTF-8 becomes U+FFFD, and each NUL, which Postgres cannot store,
// becomes U+2400, the symbol for NUL.
func CleanText(s string) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "\u2400")
	}
	return s
}

package conversation

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"math"
	"strings"
	"unicode/utf8"
)

// Role says who speaks.
type Role string

// The roles.
const (
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleSystem    Role = "system"
	RoleTool      Role = "tool"
	// RoleOutput is plain output of the agent that is no message.
	RoleOutput Role = "output"
)

// Message is one whole message.
type Message struct {
	Role Role
	Text string
	// ToolCall is set on an assistant's message that calls a tool.
	ToolCall *ToolCall
	// ToolResult is set on a tool's answer.
	ToolResult *ToolResult
	// Raw is the agent's own line where it was not understood.
	Raw string
	// TextPieces and RawPieces are set when Text or Raw hold but the beginning.
	TextPieces *Pieces
	RawPieces  *Pieces
}

// ToolCall asks for a tool to be run. Input is JSON, kept byte for byte.
type ToolCall struct {
	ID    string
	Name  string
	Input string
	// InputPieces is set when Input holds but the beginning; then that is no
	// valid JSON.
	InputPieces *Pieces
}

// ToolResult is a tool's answer to the call with the id CallID.
type ToolResult struct {
	CallID  string
	Output  string
	IsError bool
	// Interrupted: the agent died before the tool answered.
	Interrupted bool
	// OutputPieces is set when Output holds but the beginning.
	OutputPieces *Pieces
}

// Hash is the content address of a message within one namespace.
type Hash [sha256.Size]byte

// hashVersion changes when the rules of Message.Hash do.
const hashVersion = "clew message 1"

// Hash returns the message's content address. Two messages of one namespace
// have the same one when role, text, tool name, input, output, flags and raw
// line are the same, byte for byte; a text that was cut counts by its pieces.
// Ids and times stay out of it, and the namespace goes in, so that nobody
// learns from a hash what another namespace holds.
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

// fieldHash hashes fields with their lengths, so that no two lists of fields
// look alike.
type fieldHash struct{ hash.Hash }

func (h fieldHash) text(s string) {
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(s)))
	h.Write(length[:])
	h.Write([]byte(s))
}

// cut marks a text that is hashed by its pieces; no text is that long.
const cut = math.MaxUint64

// whole hashes a text, by its pieces if it was cut. A text that was not is
// hashed as text does, so that addresses from before there were pieces stand.
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

func (h fieldHash) flag(b bool) {
	if b {
		h.Write([]byte{1})
	} else {
		h.Write([]byte{0})
	}
}

// Cuttable is a text of a message that may be cut, and what names its pieces.
type Cuttable struct {
	Text   *string
	Pieces **Pieces
}

// Texts are the texts of the message that may be cut.
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

// Clone returns a message whose texts can be changed without changing m's.
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

// Clean returns the message with its texts as CleanText leaves them.
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

// CleanText makes any bytes fit for a text column, and shows where it changed
// something: each run of bytes that is not UTF-8 becomes U+FFFD, and each NUL,
// which Postgres cannot keep, becomes U+2400, the picture of a NUL.
func CleanText(s string) string {
	if !utf8.ValidString(s) {
		s = strings.ToValidUTF8(s, "\uFFFD")
	}
	if strings.IndexByte(s, 0) >= 0 {
		s = strings.ReplaceAll(s, "\x00", "\u2400")
	}
	return s
}

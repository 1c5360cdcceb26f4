package agent

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strconv"

	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

const (
	// MaxPiece is the maximum size in bytes of a piece that a Cutter emits.
	MaxPiece = 256 << 10
	// maxSkeleton limits the size of a line without its long strings.
	maxSkeleton = 1 << 20
	// longString is the length above which a string is cut out of a line, and
	// shorterString that for the second half of a line that is long even without
	// long strings.
	longString    = 64 << 10
	shorterString = 4 << 10
	// maxCutStrings limits the number of strings that are cut out of one line.
	maxCutStrings = 256
	// previewBytes is how much of a cut text its message contains.
	previewBytes = 4 << 10
	// maxPath limits the nesting depth up to which keys are tracked.
	maxPath = 64
)

// Cutter shortens one line that is too long for memory. The line is written in any
// number of parts; long strings are cut out of its JSON and emitted as pieces. A Cutter
// needs a few MiB, however long the line is.
//
// Nothing is lost. A line that is not a JSON object, or is too long even without its
// long strings, is emitted in pieces unchanged.
//
// A long string is emitted decoded under the keys that hold the agents' own text: text,
// content, output and the like. In the input of a tool, and under unknown keys, it is
// emitted in its JSON encoding, since the message will contain the JSON around it.
type Cutter struct {
	emit   func(piece []byte)
	marker string // begins the placeholder of a string that was cut out

	skeleton   []byte
	cutStrings []cutString
	raw        *pieces // the unchanged line, once it is clear that it cannot be shortened

	path     []frame
	deeper   int // number of open objects and lists below those in path
	inString bool
	escape   bool // the next byte is escaped
	start    int  // where the string begins in the skeleton
	long     *stringPieces
}

// frame is an object or a list around the current position.
type frame struct {
	object bool
	key    string
	isKey  bool // the next string is a key
}

// cutString is a string that was cut out: its beginning, and the hashes of its pieces.
type cutString struct {
	preview []byte
	hashes  [][]byte
	bytes   int64
}

// NewCutter returns a Cutter for one line. Each piece is valid UTF-8 without NUL, at most
// MaxPiece long, and may be kept by emit. Equal lines give equal pieces.
func NewCutter(emit func(piece []byte)) *Cutter {
	var nonce [12]byte
	// Never fails. The agent cannot guess the marker, so no line can pretend that
	// something was cut out of it.
	_, _ = rand.Read(nonce[:])
	return &Cutter{emit: emit, marker: "clew-cut-" + hex.EncodeToString(nonce[:]) + "-"}
}

// Write implements io.Writer: it adds the next part of the line. It never fails.
func (c *Cutter) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		switch {
		case c.raw != nil:
			c.raw.write(b)
			return n, nil
		case c.inString:
			b = c.string(b)
		default:
			b = c.structure(b)
		}
		if c.raw == nil && (len(c.skeleton) > maxSkeleton || len(c.cutStrings) > maxCutStrings) {
			c.giveUp()
		}
	}
	return n, nil
}

// structure reads JSON outside of strings, and returns the rest of b.
func (c *Cutter) structure(b []byte) []byte {
	for i, char := range b {
		if len(c.skeleton) == 0 && !isSpace(char) && char != '{' {
			c.giveUp()
			return b[i:]
		}
		if len(c.skeleton) == 0 && isSpace(char) {
			continue
		}
		c.skeleton = append(c.skeleton, char)
		switch char {
		case '"':
			c.inString, c.escape, c.start = true, false, len(c.skeleton)
			return b[i+1:]
		case '{', '[':
			if len(c.path) < maxPath && c.deeper == 0 {
				c.path = append(c.path, frame{object: char == '{', isKey: char == '{'})
			} else {
				c.deeper++
			}
		case '}', ']':
			if c.deeper > 0 {
				c.deeper--
			} else if len(c.path) > 0 {
				c.path = c.path[:len(c.path)-1]
			}
		case ',', ':':
			if top := len(c.path) - 1; c.deeper == 0 && top >= 0 && c.path[top].object {
				c.path[top].isKey = char == ','
			}
		}
		if len(c.skeleton) > maxSkeleton {
			return b[i+1:]
		}
	}
	return nil
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\r' || c == '\n' }

// string reads the inside of a string up to its end, and returns the rest of b.
func (c *Cutter) string(b []byte) []byte {
	end, closed := len(b), false
	for i := 0; i < len(b); {
		if c.escape {
			c.escape = false
			i++
			continue
		}
		next := bytes.IndexAny(b[i:], `"\`)
		if next < 0 {
			break
		}
		i += next
		if b[i] == '"' {
			end, closed = i, true
			break
		}
		c.escape = true
		i++
	}
	c.text(b[:end])
	if !closed {
		return nil
	}
	c.endString()
	return b[end+1:]
}

// text adds a part of a string in its JSON encoding.
func (c *Cutter) text(b []byte) {
	if c.long != nil {
		c.long.write(b)
		return
	}
	limit := longString
	if c.start > maxSkeleton/2 {
		limit = shorterString
	}
	if len(c.skeleton)-c.start+len(b) <= limit {
		c.skeleton = append(c.skeleton, b...)
		return
	}
	c.long = newStringPieces(c.emit, c.plain())
	c.long.write(c.skeleton[c.start:])
	c.long.write(b)
	c.skeleton = c.skeleton[:c.start]
}

// endString ends a string, and remembers it if it is a key.
func (c *Cutter) endString() {
	c.inString = false
	top := len(c.path) - 1
	if c.long != nil {
		c.endCutString()
	} else if c.deeper == 0 && top >= 0 && c.path[top].isKey {
		c.path[top].key = ""
		if key := c.skeleton[c.start:]; len(key) <= 64 {
			c.path[top].key = string(key)
		}
	}
	c.skeleton = append(c.skeleton, '"')
}

// endCutString puts a placeholder in the place of the string that was cut out.
func (c *Cutter) endCutString() {
	c.skeleton = append(c.skeleton, c.marker...)
	c.skeleton = strconv.AppendInt(c.skeleton, int64(len(c.cutStrings)), 10)
	c.skeleton = append(c.skeleton, '.')
	c.cutStrings = append(c.cutStrings, c.long.end())
	c.long = nil
}

// plain reports whether the current string is the whole text of a message, judging by
// the keys around it.
func (c *Cutter) plain() bool {
	if c.deeper > 0 || len(c.path) == 0 || c.path[len(c.path)-1].isKey {
		return false
	}
	key := ""
	for _, f := range c.path {
		if !f.object {
			continue
		}
		key = f.key
		switch key {
		case "input", "parameters", "arguments", "args", "changes", "tool_use_result", "metadata":
			return false
		}
	}
	return slices.Contains([]string{"text", "content", "output", "aggregated_output", "result", "message", "error"}, key)
}

// giveUp switches to emitting the line unchanged. Strings that were cut out before stay
// decoded, without their escapes.
func (c *Cutter) giveUp() {
	if c.long != nil {
		c.endCutString()
	}
	c.raw = c.whole(c.skeleton)
	c.skeleton = nil
}

// whole splits a text that contains placeholders into pieces.
func (c *Cutter) whole(text []byte) *pieces {
	p := &pieces{emit: c.emit}
	for len(text) > 0 {
		at := bytes.Index(text, []byte(c.marker))
		if at < 0 {
			p.write(text)
			break
		}
		p.write(text[:at])
		text = text[at+len(c.marker):]
		number, rest, _ := bytes.Cut(text, []byte{'.'})
		if i, err := strconv.Atoi(string(number)); err == nil && i < len(c.cutStrings) {
			p.add(c.cutStrings[i])
			text = rest
		}
	}
	return p
}

// Finish ends the line. short is the shortened line, for a Parser. The caller must then
// call mend with each message that the parser returns, before the message is recorded:
// mend restores the texts that were cut out, as their beginning and their pieces. It may
// emit more pieces.
//
// If short is nil, the line could not be shortened, and the caller must record an empty
// message of the role OUTPUT after mend. If a parser treats the short line as plain
// output, the caller must record it as such a message too, with the output in Raw.
func (c *Cutter) Finish() (short []byte, mend func(*daemonv1.Message)) {
	if c.raw == nil && (c.inString || !json.Valid(c.skeleton)) {
		c.giveUp()
	}
	if c.raw != nil {
		line := c.raw.end()
		return nil, func(m *daemonv1.Message) { m.Raw, m.RawPieces = string(line.preview), toPieces(line) }
	}
	return c.skeleton, c.mend
}

// mend replaces the placeholders in a message.
func (c *Cutter) mend(m *daemonv1.Message) {
	c.field(&m.Text, &m.TextPieces)
	c.field(&m.Raw, &m.RawPieces)
	if call := m.GetToolCall(); call != nil {
		c.field(&call.Input, &call.InputPieces)
		c.name(&call.Id)
		c.name(&call.Name)
	}
	if result := m.GetToolResult(); result != nil {
		c.field(&result.Output, &result.OutputPieces)
		c.name(&result.CallId)
	}
}

// field replaces the placeholders in a field that can refer to pieces.
func (c *Cutter) field(text *string, p **daemonv1.Pieces) {
	if !bytes.Contains([]byte(*text), []byte(c.marker)) {
		return
	}
	whole := c.whole([]byte(*text)).end()
	*text, *p = string(whole.preview), toPieces(whole)
}

// name replaces the placeholders in a field that cannot refer to pieces. It shortens the
// field, and appends a hash that distinguishes it from others.
func (c *Cutter) name(text *string) {
	if !bytes.Contains([]byte(*text), []byte(c.marker)) {
		return
	}
	whole := c.whole([]byte(*text)).end()
	var sum []byte
	for _, h := range whole.hashes {
		sum = append(sum, h[:4]...)
	}
	*text = string(whole.preview[:boundary(whole.preview, 200)]) + "…" + hex.EncodeToString(sum[:min(len(sum), 16)])
}

// toPieces returns the reference of a message to the pieces of a text.
func toPieces(s cutString) *daemonv1.Pieces {
	return &daemonv1.Pieces{Hashes: s.hashes, Bytes: s.bytes}
}

package historyapi

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/clip"
)

// partBytes is how much of a text is encoded at a time.
const partBytes = 64 << 10

// items is a response that lists count items; item returns the i-th.
type items struct {
	kind  string
	meta  metav1.ListMeta
	count int
	item  func(i int) any
}

func itemsOf[T any](kind string, all []T) *items {
	return &items{kind: kind, count: len(all), item: func(i int) any { return all[i] }}
}

func (l *items) writeTo(w http.ResponseWriter) error {
	list := newListWriter(w, l.kind)
	for i := range l.count {
		if err := list.item(l.item(i)); err != nil {
			return err
		}
	}
	return list.close(l.meta)
}

// listWriter writes a list as a response, one item at a time: in memory, the whole would
// be several times as large as what it lists. The response begins with the first item,
// and until then may still become an error. The list's metadata is known only at the end,
// so it follows the items.
type listWriter struct {
	w    http.ResponseWriter
	kind string

	buffered *bufio.Writer
	encoded  bytes.Buffer
	// count is the number of items written, bytes the length of their JSON.
	count int
	bytes int64
}

func newListWriter(w http.ResponseWriter, kind string) *listWriter {
	return &listWriter{w: w, kind: kind}
}

// item writes an item.
func (l *listWriter) item(item any) error {
	encoded, err := l.encode(item)
	if err != nil {
		return err
	}
	if err := l.next(); err != nil {
		return err
	}
	return l.write(encoded)
}

// leftOut replaces a text while the rest of its entry is encoded. No stored text contains
// that character.
const leftOut = "\x00"

var errLeftOut = errors.New("an entry contains a character that no stored text has")

// entry writes a message, and its long texts a part at a time: the JSON of a text may be
// six times as long as the text.
func (l *listWriter) entry(e historyv1alpha1.ConversationEntry) error {
	var long []string
	for _, text := range textsOf(&e) {
		if len(*text) > partBytes {
			long = append(long, *text)
			*text = leftOut
		}
	}
	if len(long) == 0 {
		return l.item(e)
	}
	encoded, err := l.encode(e)
	if err != nil {
		return err
	}
	between := bytes.Split(bytes.Clone(encoded), []byte(`"\u0000"`))
	if len(between) != len(long)+1 {
		return errLeftOut
	}
	if err := l.next(); err != nil {
		return err
	}
	for i, text := range long {
		if err := errors.Join(l.write(between[i]), l.text(text)); err != nil {
			return err
		}
	}
	return l.write(between[len(long)])
}

// textsOf returns the texts of an entry that may be long, in the order of its JSON.
func textsOf(e *historyv1alpha1.ConversationEntry) []*string {
	texts := []*string{&e.Text}
	if e.ToolCall != nil {
		texts = append(texts, &e.ToolCall.Input)
	}
	if e.ToolResult != nil {
		texts = append(texts, &e.ToolResult.Output)
	}
	return append(texts, &e.Raw)
}

// text writes a string.
func (l *listWriter) text(text string) error {
	err := l.write([]byte{'"'})
	for text != "" && err == nil {
		part := clip.Bytes(text, partBytes)
		var encoded []byte
		if encoded, err = l.encode(part); err == nil {
			err = l.write(encoded[1 : len(encoded)-1])
		}
		text = text[len(part):]
	}
	return errors.Join(err, l.write([]byte{'"'}))
}

// encode returns the JSON of a value, valid until the next call.
func (l *listWriter) encode(value any) ([]byte, error) {
	l.encoded.Reset()
	encoder := json.NewEncoder(&l.encoded)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return bytes.TrimSuffix(l.encoded.Bytes(), []byte("\n")), err
}

// next writes what precedes an item.
func (l *listWriter) next() error {
	if l.buffered == nil {
		if err := l.begin(); err != nil {
			return err
		}
	}
	l.count++
	if l.count == 1 {
		return nil
	}
	return l.write([]byte{','})
}

func (l *listWriter) begin() error {
	kind, err := json.Marshal(typeMeta(l.kind))
	if err != nil {
		return err
	}
	jsonHeader(l.w)
	l.buffered = bufio.NewWriterSize(l.w, flushEvery)
	_, err = l.buffered.WriteString(string(kind[:len(kind)-1]) + `,"items":[`)
	return err
}

func (l *listWriter) write(part []byte) error {
	n, err := l.buffered.Write(part)
	l.bytes += int64(n)
	return err
}

// close writes the end of the list.
func (l *listWriter) close(meta metav1.ListMeta) error {
	if l.buffered == nil {
		if err := l.begin(); err != nil {
			return err
		}
	}
	encoded, err := l.encode(meta)
	if err != nil {
		return err
	}
	_, err = l.buffered.WriteString(`],"metadata":` + string(encoded) + "}\n")
	return errors.Join(err, l.buffered.Flush())
}

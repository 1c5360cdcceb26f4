package wire_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/daemon/wire"
)

func TestRoundTrip(t *testing.T) {
	var b bytes.Buffer
	line := wire.Line{Number: 7, More: true, Data: []byte("abc")}
	if err := wire.WriteLine(&b, line); err != nil {
		t.Fatal(err)
	}
	if err := wire.Write(&b, wire.TypeHello, wire.Hello{Session: "s"}); err != nil {
		t.Fatal(err)
	}
	if err := wire.Write(&b, wire.TypeRelease, nil); err != nil {
		t.Fatal(err)
	}
	f, err := wire.Read(&b)
	if err != nil || f.Type != wire.TypeLine {
		t.Fatal(f, err)
	}
	got, err := f.Line()
	if d := cmp.Diff(line, got); d != "" || err != nil {
		t.Fatal(d, err)
	}
	f, _ = wire.Read(&b)
	if h, err := f.Hello(); err != nil || h.Session != "s" {
		t.Fatal(h, err)
	}
	if f, err = wire.Read(&b); err != nil || f.Type != wire.TypeRelease {
		t.Fatal(f, err)
	}
	if _, err := wire.Read(&b); !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

func TestHostileFrames(t *testing.T) {
	for name, data := range map[string]string{
		"too long":  "\xff\xff\xff\xff\x02",
		"truncated": "\x00\x00\x00\x05\x02ab",
	} {
		if _, err := wire.Read(bytes.NewReader([]byte(data))); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	for name, data := range map[string]string{
		"line without number":  "\x00\x00\x00\x01\x02a",
		"line with number 0":   "\x00\x00\x00\x09\x02\x00\x00\x00\x00\x00\x00\x00\x00\x00",
		"negative line number": "\x00\x00\x00\x09\x02\xff\x00\x00\x00\x00\x00\x00\x00\x00",
	} {
		f, err := wire.Read(bytes.NewReader([]byte(data)))
		if err != nil {
			t.Fatal(name, err)
		}
		if _, err := f.Line(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	f, _ := wire.Read(bytes.NewReader([]byte("\x00\x00\x00\x02\x01{}")))
	if _, err := f.Hello(); err == nil {
		t.Error("a session without a name")
	}
	if wire.WriteLine(io.Discard, wire.Line{Number: 1, Data: make([]byte, wire.MaxChunk+1)}) == nil {
		t.Error("a line that is too long")
	}
}

// offered notes how much room there was for what is read.
type offered struct {
	io.Reader
	most int // more than had been read before
	read int
}

func (o *offered) Read(p []byte) (int, error) {
	o.most = max(o.most, len(p)-o.read)
	n, err := o.Reader.Read(p)
	o.read += n
	return n, err
}

// TestAFrameTakesTheMemoryOfWhatHasCome: whoever is in the agent's container can send
// headers without end.
func TestAFrameTakesTheMemoryOfWhatHasCome(t *testing.T) {
	const most = 1 << 10
	var whole bytes.Buffer
	data := bytes.Repeat([]byte("0123456789abcdef"), wire.MaxChunk/16)
	if err := wire.WriteLine(&whole, wire.Line{Number: 1, Data: data}); err != nil {
		t.Fatal(err)
	}
	for _, sent := range []int{5, 6, 1000, 5000, whole.Len() - 1} {
		r := &offered{Reader: bytes.NewReader(whole.Bytes()[:sent])}
		if _, err := wire.Read(r); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("%d bytes of a frame: %v", sent, err)
		}
		if r.most > most {
			t.Errorf("of a frame of %d bytes %d came, and room was made for %d more", whole.Len(), sent, r.most)
		}
	}
	f, err := wire.Read(&whole)
	if err != nil {
		t.Fatal(err)
	}
	if l, err := f.Line(); err != nil || !bytes.Equal(l.Data, data) {
		t.Errorf("%v, %d bytes", err, len(l.Data))
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02\x01{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r := bytes.NewReader(data)
		for {
			frame, err := wire.Read(r)
			if err != nil {
				return
			}
			frame.Line()
			frame.Hello()
		}
	})
}

// TestBeforeTool: a call fits into a frame, however long its input is.
func TestBeforeTool(t *testing.T) {
	for _, tt := range []struct {
		name, input string
		cut         bool
		err         string
	}{
		{"Bash", `{"command":"ls"}`, false, ""},
		{"Write", strings.Repeat("x", wire.MaxChunk), true, ""},
		{"Write", strings.Repeat("\x01ü", 1<<20), true, ""},
		{strings.Repeat("x", wire.MaxChunk), "", false, "too long for a frame"},
	} {
		var b bytes.Buffer
		err := wire.WriteBeforeTool(&b, wire.BeforeTool{ID: "1", Name: tt.name, Input: tt.input})
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v, want %q", err, tt.err)
			}
			continue
		}
		f, err := wire.Read(&b)
		if err != nil {
			t.Fatal(err)
		}
		var got wire.BeforeTool
		if err := f.Decode(&got); err != nil || got.Name != tt.name || got.Cut != tt.cut || !strings.HasPrefix(tt.input, got.Input) || got.Input == "" {
			t.Errorf("%v: cut %v, %d bytes of %d", err, got.Cut, len(got.Input), len(tt.input))
		}
	}
}

package wire_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/clew-dev/clew/internal/daemon/wire"
)

func TestFramesAreReadAsTheyWereWritten(t *testing.T) {
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
	next := func(want wire.Type) wire.Frame {
		t.Helper()
		f, err := wire.Read(&b)
		if err != nil {
			t.Fatalf("read a frame of type %d: %v", want, err)
		}
		if f.Type != want {
			t.Fatalf("read a frame of type %d, want %d", f.Type, want)
		}
		return f
	}
	gotLine, err := next(wire.TypeLine).Line()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(line, gotLine); diff != "" {
		t.Fatalf("line (-want +got):\n%s", diff)
	}
	gotHello, err := next(wire.TypeHello).Hello()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(wire.Hello{Session: "s"}, gotHello); diff != "" {
		t.Fatalf("hello (-want +got):\n%s", diff)
	}
	next(wire.TypeRelease)
	if _, err := wire.Read(&b); !errors.Is(err, io.EOF) {
		t.Fatalf("after the last frame Read returned %v, want EOF", err)
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
		t.Error("a session without a name was accepted")
	}
	if wire.WriteLine(io.Discard, wire.Line{Number: 1, Data: make([]byte, wire.MaxChunk+1)}) == nil {
		t.Error("a line longer than a frame was written")
	}
}

// offered measures how much memory Read allocates in advance.
type offered struct {
	io.Reader
	most int // the most bytes of a buffer beyond those read before
	read int
}

func (o *offered) Read(p []byte) (int, error) {
	o.most = max(o.most, len(p)-o.read)
	n, err := o.Reader.Read(p)
	o.read += n
	return n, err
}

// TestMemoryIsAllocatedAsAFrameArrives, since any process in the agent's container can send
// any number of headers.
func TestMemoryIsAllocatedAsAFrameArrives(t *testing.T) {
	const most = 1 << 10
	var whole bytes.Buffer
	data := bytes.Repeat([]byte("0123456789abcdef"), wire.MaxChunk/16)
	if err := wire.WriteLine(&whole, wire.Line{Number: 1, Data: data}); err != nil {
		t.Fatal(err)
	}
	for _, sent := range []int{5, 6, 1000, 5000, whole.Len() - 1} {
		r := &offered{Reader: bytes.NewReader(whole.Bytes()[:sent])}
		if _, err := wire.Read(r); !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("of %d bytes of a frame Read returned %v, want an unexpected end", sent, err)
		}
		if r.most > most {
			t.Errorf("when %d of %d bytes of a frame had arrived, %d bytes were allocated in advance, want at most %d", sent, whole.Len(), r.most, most)
		}
	}
	f, err := wire.Read(&whole)
	if err != nil {
		t.Fatal(err)
	}
	l, err := f.Line()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(l.Data, data) {
		t.Errorf("the line of %d bytes has other data than was sent, %d bytes", len(l.Data), len(data))
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
				t.Errorf("the error is %v, want %q", err, tt.err)
			}
			continue
		}
		f, err := wire.Read(&b)
		if err != nil {
			t.Fatal(err)
		}
		var got wire.BeforeTool
		if err := f.Decode(&got); err != nil {
			t.Fatal(err)
		}
		want := wire.BeforeTool{ID: "1", Name: tt.name, Cut: tt.cut}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(wire.BeforeTool{}, "Input")); diff != "" {
			t.Errorf("call (-want +got):\n%s", diff)
		}
		if got.Input == "" || !strings.HasPrefix(tt.input, got.Input) {
			t.Errorf("the input is %d bytes that are not the beginning of the tool's, %d bytes", len(got.Input), len(tt.input))
		}
	}
}

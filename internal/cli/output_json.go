package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode/utf16"
	"unicode/utf8"

	"sigs.k8s.io/yaml"
)

// printRaw prints a response of the history API as JSON or YAML.
func (p *plugin) printRaw(format string, object any) error {
	data, err := json.MarshalIndent(object, "", "  ")
	if err != nil {
		return err
	}
	data = append(escapedJSON(data), '\n')
	if format == "yaml" {
		if data, err = yaml.JSONToYAML(data); err != nil {
			return err
		}
	}
	_, err = p.Out.Write(data)
	return err
}

// escapedJSON returns a JSON document with the same values, in which the characters that a
// terminal could act on are escaped. JSON itself requires that of those below U+0020 only.
func escapedJSON(document []byte) []byte {
	found := func(r rune) bool { return r >= 0x7f && dangerous(r) }
	if !bytes.ContainsFunc(document, found) {
		return document
	}
	var out bytes.Buffer
	for len(document) > 0 {
		r, size := utf8.DecodeRune(document)
		switch {
		case !found(r):
			out.Write(document[:size])
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
		document = document[size:]
	}
	return out.Bytes()
}

// jsonWriter escapes the JSON documents that are written to it, each by one call.
type jsonWriter struct{ io.Writer }

func (w jsonWriter) Write(document []byte) (int, error) {
	if _, err := w.Writer.Write(escapedJSON(document)); err != nil {
		return 0, err
	}
	return len(document), nil
}

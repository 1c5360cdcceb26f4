package journal

import (
	"bytes"
	"encoding/json"
	"fmt"
	"hash/crc32"
)

// The file begins with its own checksum, since most flipped bits leave valid JSON. It is
// the CRC-32C of the file, in hexadecimal, computed with zeros in the checksum's place.
// Journals of older releases have none.
const (
	beforeSum = "{\n \"checksum\": \""
	noSum     = "00000000"
)

// encode returns the contents of the file for a state.
func encode(s State) ([]byte, error) {
	s.Checksum = noSum
	raw, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return nil, err
	}
	copy(raw[len(beforeSum):], sum(raw))
	return raw, nil
}

// intact reports whether raw is what was written, as far as that can be determined.
func intact(raw []byte) bool {
	if json.Unmarshal(raw, &State{}) != nil {
		return false
	}
	if !bytes.HasPrefix(raw, []byte(beforeSum)) || len(raw) < len(beforeSum)+len(noSum) {
		return true // an older release wrote it
	}
	zeroed := bytes.Clone(raw)
	copy(zeroed[len(beforeSum):], noSum)
	return string(raw[len(beforeSum):len(beforeSum)+len(noSum)]) == sum(zeroed)
}

func sum(raw []byte) string {
	return fmt.Sprintf("%08x", crc32.Checksum(raw, crc32.MakeTable(crc32.Castagnoli)))
}

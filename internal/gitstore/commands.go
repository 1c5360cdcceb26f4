package gitstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
)

// maxCommandBytes bounds the command list that precedes a pack. It has room for several
// thousand refs.
const maxCommandBytes = 1 << 20

// errNotCommands is returned for a body that does not begin as git push's does.
var errNotCommands = errors.New("the body does not begin with a list of ref updates and a pack as git push sends them")

var commandLine = regexp.MustCompile(`^([^ ]*) ([^ ]*) ([^\x00\n]+)$`)

// pushHead is the part of a push request that precedes the pack's objects.
type pushHead struct {
	Commands []Command
	// Raw are the bytes read so far, to be passed on to git unchanged.
	Raw []byte
	// SideBand is set if the client shows messages sent beside the report.
	SideBand bool
	// Objects is the number of objects that the pack's header declares.
	Objects uint32
}

// readPushHead reads the ref updates at the start of a git-receive-pack
// request, and the header of the pack that follows unless all of them are
// deletions. It accepts exactly what git push sends (no signed and no shallow
// pushes, which the gitstore does not offer), so that git cannot interpret the same
// bytes differently. Git sends an empty list as a probe.
func readPushHead(body io.Reader) (pushHead, error) {
	var head pushHead
	for {
		line, raw, err := readPacket(body, maxCommandBytes-len(head.Raw))
		head.Raw = append(head.Raw, raw...)
		if err != nil {
			return head, err
		}
		if line == nil {
			if slices.ContainsFunc(head.Commands, func(c Command) bool { return !isZero(c.New) }) {
				return head, head.readPackHeader(body)
			}
			return head, nil
		}
		command, capabilities, hasCapabilities := bytes.Cut(line, []byte{0})
		if hasCapabilities {
			if len(head.Commands) > 0 {
				return head, errNotCommands
			}
			head.SideBand = bytes.Contains(capabilities, []byte("side-band-64k"))
		}
		match := commandLine.FindSubmatch(bytes.TrimSuffix(command, []byte{'\n'}))
		if match == nil || !isObjectID(string(match[1])) || !isObjectID(string(match[2])) {
			return head, errNotCommands
		}
		head.Commands = append(head.Commands, Command{Old: string(match[1]), New: string(match[2]), Ref: string(match[3])})
	}
}

// readPackHeader reads the number of objects in the pack that follows.
func (h *pushHead) readPackHeader(body io.Reader) error {
	var header [12]byte
	n, err := io.ReadFull(body, header[:])
	h.Raw = append(h.Raw, header[:n]...)
	if err != nil || !bytes.HasPrefix(header[:], []byte("PACK")) {
		return errNotCommands
	}
	h.Objects = binary.BigEndian.Uint32(header[8:])
	return nil
}

// readPacket reads one pkt-line of at most limit bytes, length prefix included. The line
// is nil for a flush packet; raw are the bytes read.
func readPacket(r io.Reader, limit int) (line, raw []byte, err error) {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", errNotCommands, err)
	}
	length, err := strconv.ParseUint(string(size[:]), 16, 16)
	if err != nil {
		return nil, size[:], errNotCommands
	}
	if length == 0 {
		return nil, size[:], nil
	}
	if length <= 4 || int(length) > limit {
		return nil, size[:], errNotCommands
	}
	raw = make([]byte, length)
	copy(raw, size[:])
	if _, err := io.ReadFull(r, raw[4:]); err != nil {
		return nil, raw, fmt.Errorf("%w: %w", errNotCommands, err)
	}
	return raw[4:], raw, nil
}

// packet returns payload as one pkt-line.
func packet(payload []byte) []byte {
	return append(fmt.Appendf(nil, "%04x", len(payload)+4), payload...)
}

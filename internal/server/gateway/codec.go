package gateway

import (
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxElements is the number of messages, and elements of lists and maps, that a request
// may contain. A daemon's requests have hundreds, and thousands if a checkpoint changes
// many files.
const maxElements = 200_000

// boundedCodec decodes Protobuf but refuses what takes far more memory decoded than
// encoded: an empty record has two bytes on the wire and over a hundred in memory, so a
// few mebibytes of them would become hundreds.
type boundedCodec struct{}

// Name implements connect.Codec: it replaces Connect's own codec.
func (boundedCodec) Name() string { return "proto" }

// Marshal implements connect.Codec.
func (boundedCodec) Marshal(message any) ([]byte, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is not a Protobuf message", message)
	}
	return proto.Marshal(m)
}

// Unmarshal implements connect.Codec.
func (boundedCodec) Unmarshal(data []byte, message any) error {
	m, ok := message.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a Protobuf message", message)
	}
	elements := 0
	if err := count(data, m.ProtoReflect().Descriptor(), &elements); err != nil {
		return err
	}
	return proto.Unmarshal(data, m)
}

// count adds the elements of an encoded message without decoding it. Its recursion is as
// deep as the message's definition is nested, which the data cannot change.
func count(data []byte, kind protoreflect.MessageDescriptor, elements *int) error {
	for len(data) > 0 {
		number, wire, n := protowire.ConsumeTag(data)
		if n < 0 {
			return protowire.ParseError(n)
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(number, wire, data); n < 0 {
			return protowire.ParseError(n)
		}
		value := data[:n]
		data = data[n:]
		// Unknown fields are kept as they came.
		field := kind.Fields().ByNumber(number)
		if field == nil || field.Message() == nil && !field.IsList() {
			continue
		}
		if *elements++; *elements > maxElements {
			return fmt.Errorf("the request has more than %d elements, the most allowed", maxElements)
		}
		if inner, n := protowire.ConsumeBytes(value); n >= 0 && wire == protowire.BytesType && field.Message() != nil {
			if err := count(inner, field.Message(), elements); err != nil {
				return err
			}
		}
	}
	return nil
}

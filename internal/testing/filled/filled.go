// Package filled fills every field of a value, and finds the empty fields of one. A test
// that fills a value, converts it and looks for empty fields fails when a new field was
// forgotten in the conversion.
package filled

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// In fills every exported field of the value that value points to: strings and numbers
// differ from each other, lists and maps have one element, pointers are not nil. Times are
// whole seconds in UTC, which all stores and encodings preserve. A type that contains
// itself is filled once.
func In(value any) {
	n := int64(0)
	fill(reflect.ValueOf(value).Elem(), &n, nil)
}

// fill fills v. n is the number of values so far, and within the types that contain v.
func fill(v reflect.Value, n *int64, within []reflect.Type) {
	*n++
	if slices.Contains(within, v.Type()) {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("text-%d", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(*n)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n % 256))
	case reflect.Float64:
		v.SetFloat(float64(*n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n, within)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), n, within)
	case reflect.Map:
		key, item := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, n, within)
		fill(item, n, within)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, item)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Unix(1_700_000_000+*n, 0).UTC()))
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), n, append(within, v.Type()))
			}
		}
	}
}

// InMessage is In for a protobuf message. Of the fields of a oneof it fills the one that is
// set.
func InMessage(message proto.Message) {
	n := int32(0)
	inMessage(message.ProtoReflect(), &n)
}

func inMessage(m protoreflect.Message, n *int32) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		switch {
		case field.ContainingOneof() != nil && !m.Has(field):
		case field.IsMap():
			m.Mutable(field).Map().Set(scalar(field.MapKey(), n).MapKey(), scalar(field.MapValue(), n))
		case field.IsList() && field.Message() != nil:
			list := m.Mutable(field).List()
			item := list.NewElement()
			inMessage(item.Message(), n)
			list.Append(item)
		case field.IsList():
			m.Mutable(field).List().Append(scalar(field, n))
		case field.Message() != nil:
			inMessage(m.Mutable(field).Message(), n)
		default:
			m.Set(field, scalar(field, n))
		}
	}
}

// scalar returns a value for a field that is not a message.
func scalar(field protoreflect.FieldDescriptor, n *int32) protoreflect.Value {
	*n++
	switch field.Kind() {
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(fmt.Sprintf("text-%d", *n))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(fmt.Appendf(nil, "bytes-%d", *n))
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(field.Enum().Values().Get(1).Number())
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(*n)
	case protoreflect.Int64Kind:
		return protoreflect.ValueOfInt64(int64(*n))
	case protoreflect.Uint64Kind, protoreflect.Fixed64Kind:
		return protoreflect.ValueOfUint64(uint64(*n))
	}
	panic(fmt.Sprintf("the field %s is of a kind that no message of the protocol had before: %s", field.FullName(), field.Kind()))
}

// Empty returns the names of the empty fields of a struct and of the structs in it, such as
// "Git.Head", without those in but. A name in but that is not an empty field is returned
// with the words "is not empty".
func Empty(value any, but ...string) []string {
	var empty []string
	fieldsOf(reflect.ValueOf(value), "", &empty)
	return without(empty, but)
}

func fieldsOf(v reflect.Value, path string, empty *[]string) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			fieldsOf(v.Elem(), path, empty)
			return
		}
	case reflect.Slice:
		for i := range v.Len() {
			fieldsOf(v.Index(i), fmt.Sprintf("%s[%d]", path, i), empty)
		}
	case reflect.Struct:
		if _, is := v.Interface().(time.Time); is {
			break
		}
		for i := range v.NumField() {
			field := v.Type().Field(i)
			if !field.IsExported() {
				continue
			}
			name := join(path, field.Name)
			if field.Anonymous {
				name = path
			}
			fieldsOf(v.Field(i), name, empty)
		}
		return
	}
	if v.IsZero() {
		*empty = append(*empty, path)
	}
}

// EmptyIn is Empty for a protobuf message, whose fields have the names of the protocol, such as
// "risky_tool.call_id".
func EmptyIn(message proto.Message, but ...string) []string {
	var empty []string
	emptyIn(message.ProtoReflect(), "", &empty)
	return without(empty, but)
}

func emptyIn(m protoreflect.Message, path string, empty *[]string) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		name := join(path, string(field.Name()))
		switch {
		case !m.Has(field):
			*empty = append(*empty, name)
		case field.Message() == nil || field.Message().ParentFile().Package() == "google.protobuf":
		case field.IsList():
			for j := range m.Get(field).List().Len() {
				emptyIn(m.Get(field).List().Get(j).Message(), fmt.Sprintf("%s[%d]", name, j), empty)
			}
		default:
			emptyIn(m.Get(field).Message(), name, empty)
		}
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// without removes the names in but from empty, and adds those in but that are not in empty.
func without(empty, but []string) (out []string) {
	for _, name := range empty {
		if !slices.Contains(but, name) {
			out = append(out, name)
		}
	}
	for _, name := range but {
		if !slices.Contains(empty, name) {
			out = append(out, name+" is not empty")
		}
	}
	return out
}

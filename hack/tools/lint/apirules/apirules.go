// Package apirules checks that Go types of a Kubernetes API follow the API
// conventions.
//
// It looks at packages that carry the marker +groupName, and promises a
// finding, with the field's place and what to do, for: a field without a JSON
// tag, or one that is not lower camel case; a comment that does not begin with
// the field's name in JSON; a field that is neither or both of +optional and
// +required; a field called phase; booleans, floating-point numbers, plain ints
// and durations; lists without +listType, and lists of conditions that are not
// keyed by type; and, in what users write, strings and lists without a maximum.
package apirules

import (
	"go/ast"
	"go/token"
	"go/types"
	"reflect"
	"regexp"
	"strings"

	"golang.org/x/tools/go/analysis"
)

// Analyzer gives the rules as an analyzer.
func Analyzer() *analysis.Analyzer {
	return &analysis.Analyzer{Name: Name, Doc: "checks Kubernetes API types against the API conventions", Run: run}
}

func run(pass *analysis.Pass) (any, error) {
	if !isAPI(pass.Files) {
		return nil, nil
	}
	c := &checker{pass: pass, markers: map[string]string{}, written: map[*types.TypeName]bool{}}
	for _, file := range pass.Files {
		if ast.IsGenerated(file) {
			continue
		}
		c.collect(file)
	}
	for _, declared := range c.structs {
		if strings.HasSuffix(declared.name.Name(), "Spec") {
			c.reach(declared.name.Type())
		}
	}
	for _, declared := range c.structs {
		c.checkStruct(declared)
	}
	return nil, nil
}

func isAPI(files []*ast.File) bool {
	for _, file := range files {
		for _, group := range file.Comments {
			if strings.Contains(comment(group), "+groupName=") {
				return true
			}
		}
	}
	return false
}

type declaredStruct struct {
	name   *types.TypeName
	fields *ast.StructType
}

type checker struct {
	pass    *analysis.Pass
	structs []declaredStruct
	markers map[string]string        // comments of named types
	written map[*types.TypeName]bool // types that users write
}

// collect notes the types that a file declares, and their markers.
func (c *checker) collect(file *ast.File) {
	for _, decl := range file.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.TYPE {
			continue
		}
		for _, spec := range gen.Specs {
			spec := spec.(*ast.TypeSpec)
			name, ok := c.pass.TypesInfo.Defs[spec.Name].(*types.TypeName)
			if !ok {
				continue
			}
			c.markers[name.Name()] = comment(gen.Doc) + comment(spec.Doc)
			if fields, ok := spec.Type.(*ast.StructType); ok {
				c.structs = append(c.structs, declaredStruct{name, fields})
			}
		}
	}
}

// reach marks a type of this package and all that lies in it as written by users.
func (c *checker) reach(t types.Type) {
	switch t := t.(type) {
	case *types.Pointer:
		c.reach(t.Elem())
	case *types.Slice:
		c.reach(t.Elem())
	case *types.Map:
		c.reach(t.Elem())
	case *types.Named:
		if t.Obj().Pkg() != c.pass.Pkg || c.written[t.Obj()] {
			return
		}
		c.written[t.Obj()] = true
		if s, ok := t.Underlying().(*types.Struct); ok {
			for i := range s.NumFields() {
				c.reach(s.Field(i).Type())
			}
		}
	}
}

func (c *checker) checkStruct(s declaredStruct) {
	for _, field := range s.fields.Fields.List {
		t := c.pass.TypesInfo.TypeOf(field.Type)
		if t == nil || len(field.Names) == 0 { // embedded: TypeMeta and ObjectMeta
			continue
		}
		c.checkField(s, field, t)
	}
}

var camelCase = regexp.MustCompile(`^[a-z][A-Za-z0-9]*$`)

func (c *checker) checkField(s declaredStruct, field *ast.Field, t types.Type) {
	where := s.name.Name() + "." + field.Names[0].Name
	report := func(what string) { c.pass.Reportf(field.Pos(), "%s: %s", where, what) }
	name := jsonName(field)
	if !camelCase.MatchString(name) {
		report("needs a JSON tag in lower camel case")
		return
	}
	if strings.EqualFold(name, "phase") {
		report("say what happens with conditions, not with a phase")
	}
	c.checkType(report, t)
	if strings.HasSuffix(s.name.Name(), "List") && name == "items" {
		return
	}
	text := comment(field.Doc)
	c.checkComment(report, name, text)
	c.checkList(report, name, t, text)
	if c.written[s.name] {
		c.checkMaximum(report, t, text)
	}
}

func (c *checker) checkComment(report func(string), name, text string) {
	if !strings.HasPrefix(strings.TrimSpace(text), name) {
		report("begin the comment with the field's name in JSON, " + name)
	}
	optional, required := hasMarker(text, "optional"), hasMarker(text, "required")
	switch {
	case optional && required:
		report("is both +optional and +required")
	case !optional && !required:
		report("say whether it is +optional or +required")
	}
}

// checkType refuses types that are ambiguous in JSON or leave no room to grow.
func (c *checker) checkType(report func(string), t types.Type) {
	switch t := t.(type) {
	case *types.Pointer:
		c.checkType(report, t.Elem())
	case *types.Slice:
		c.checkType(report, t.Elem())
	case *types.Named:
		switch t.Obj().Name() {
		case "Duration":
			report("give a number with its unit in the name, such as everySeconds, instead of a duration")
		}
	case *types.Basic:
		switch {
		case t.Kind() == types.Bool:
			report("use an enum: a boolean never gets a third value")
		case t.Info()&types.IsFloat != 0:
			report("use an integer of a smaller unit: floating-point numbers do not survive a round trip")
		case t.Info()&types.IsInteger != 0 && t.Kind() != types.Int32 && t.Kind() != types.Int64 && t.Kind() != types.Byte:
			report("use int32 or int64")
		}
	}
}

func (c *checker) checkList(report func(string), name string, t types.Type, text string) {
	slice, ok := t.(*types.Slice)
	if !ok {
		return
	}
	if b, ok := slice.Elem().(*types.Basic); ok && b.Kind() == types.Byte {
		return
	}
	if !hasMarker(text, "listType") {
		report("say how server-side apply merges it with +listType")
	}
	if strings.Contains(text, "+listType=map") && !hasMarker(text, "listMapKey") {
		report("a list of type map needs +listMapKey")
	}
	if name == "conditions" && !(strings.Contains(text, "+listType=map") && strings.Contains(text, "+listMapKey=type")) {
		report("conditions are a list of type map with the key type")
	}
}

// checkMaximum wants a bound for what users write: CEL's cost budget and etcd
// depend on it.
func (c *checker) checkMaximum(report func(string), t types.Type, text string) {
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	switch t := t.(type) {
	case *types.Slice:
		if !strings.Contains(text, "MaxItems=") {
			report("give the list a maximum with +kubebuilder:validation:MaxItems")
		}
		if isString(t.Elem()) && !strings.Contains(text, "items:MaxLength=") && !c.bounded(t.Elem()) {
			report("give the strings a maximum with +kubebuilder:validation:items:MaxLength")
		}
	case *types.Basic, *types.Named:
		if isString(t) && !strings.Contains(text, "validation:MaxLength=") && !strings.Contains(text, "validation:Enum=") && !c.bounded(t) {
			report("give the string a maximum with +kubebuilder:validation:MaxLength")
		}
	}
}

// bounded says whether a named type of this package bounds its strings itself.
func (c *checker) bounded(t types.Type) bool {
	named, ok := t.(*types.Named)
	if !ok {
		return false
	}
	markers := c.markers[named.Obj().Name()]
	return strings.Contains(markers, "Enum=") || strings.Contains(markers, "MaxLength=")
}

func isString(t types.Type) bool {
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Kind() == types.String
}

// comment gives the text of a comment with its markers.
func comment(group *ast.CommentGroup) string {
	if group == nil {
		return ""
	}
	var b strings.Builder
	for _, line := range group.List {
		b.WriteString(strings.TrimSpace(strings.TrimPrefix(line.Text, "//")) + "\n")
	}
	return b.String()
}

func hasMarker(text, marker string) bool {
	for line := range strings.SplitSeq(text, "\n") {
		name, _, _ := strings.Cut(strings.TrimPrefix(line, "+"), "=")
		if strings.HasPrefix(line, "+") && (name == marker || name == "k8s:"+marker) {
			return true
		}
	}
	return false
}

func jsonName(field *ast.Field) string {
	if field.Tag == nil {
		return ""
	}
	name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("json"), ",")
	return name
}
